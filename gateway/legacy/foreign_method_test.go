package legacy_test

import (
	"net/http"
	"strings"
	"testing"

	"taskgate/internal/mcp"
	"taskgate/internal/wiretest"
	"taskgate/shim/shimtest/fake"
)

// What the gateway does not know goes through between clients and servers of both eras: a
// client's request, and a server's notification on the stream of a call and outside of any.
func TestForeignMethods(t *testing.T) {
	const said = `{"jsonrpc":"2.0","method":"notifications/acme/said","params":{"x":1.0}}`
	for name, mode := range map[string]fake.Mode{"modern": fake.Modern, "legacy": fake.Stateful} {
		t.Run(name, func(t *testing.T) {
			s := fake.New(t, mode)
			s.Tool("t", fake.Stream(said, `{"jsonrpc":"2.0","id":{id},"result":{"resultType":"complete","content":[]}}`))
			s.On("acme/do", fake.Result(`{"resultType":"complete","did":1.0}`))
			listening := make(chan struct{}, 1)
			s.On("subscriptions/listen", func(x *fake.Exchange) {
				x.Event(x.Fill(`{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":{id}},"notifications":{"toolsListChanged":true}}}`))
				x.Event(said)
				listening <- struct{}{}
				<-x.R.Context().Done()
			})
			url := newBefore(t, s, nil)
			c := newRawClient(t, url).initialize("")
			if _, got := c.post(`{"jsonrpc":"2.0","id":1,"method":"acme/do","params":{"y":2.0}}`); !strings.Contains(got, `"did":1.0`) {
				t.Errorf("a legacy client's request: %s", got)
			}
			if _, got := c.post(`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"t"}}`); !strings.Contains(got, said) {
				t.Errorf("on a legacy client's call: %s", got)
			}
			status, body := exchange(t, asked{caps: `{}`, method: "acme/do", params: `{"y":2.0}`}, url)
			if status != http.StatusOK || !strings.Contains(body, `"did":1.0`) {
				t.Errorf("a modern client's request: %s", body)
			}
			if seen := s.Seen("acme/do"); len(seen) != 2 || !strings.Contains(string(seen[1].Params), `"y":2.0`) {
				t.Errorf("the server got %d", len(seen))
			}
			status, body = exchange(t, asked{caps: `{}`, method: mcp.MethodToolsCall, params: `{"name":"t"}`}, url)
			if status != http.StatusOK || !strings.Contains(body, said) {
				t.Errorf("on a modern client's call: %s", body)
			}
			status, body = exchange(t, asked{caps: `{}`, method: "acme/else", params: `{"y":2.0}`}, url)
			if status != http.StatusNotFound || !strings.Contains(body, `"code":-32601`) {
				t.Errorf("a method that nobody knows: %d %s", status, body)
			}
			if mode == fake.Stateful { // as servers of the Go SDK refuse it
				s.On("acme/else", fake.Status(http.StatusBadRequest, "text/plain", "unsupported"))
				status, body = exchange(t, asked{caps: `{}`, method: "acme/else", params: `{"y":2.0}`}, url)
				if status != http.StatusNotFound || !strings.Contains(body, `"code":-32601`) {
					t.Errorf("a method that is refused: %d %s", status, body)
				}
			}

			get := c.takeStream()
			if mode == fake.Modern {
				wiretest.Await(t, listening, "the listen stream")
			} else {
				settled(t, "the server is listened to", func() bool {
					s.Notify("notifications/nobody", `{}`) // the head of the GET stream comes when it is open
					return s.Listeners() > 0
				})
				s.Notify("notifications/acme/said", `{"x":1.0}`)
			}
			get.heard(`"notifications/acme/said"`)
		})
	}
}

// exchange makes a request of a modern client, and returns the whole answer.
func exchange(t *testing.T, a asked, url string) (int, string) {
	t.Helper()
	resp, err := http.DefaultClient.Do(a.request(t.Context(), url, ""))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var b strings.Builder
	if err := resp.Write(&b); err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, b.String()
}
