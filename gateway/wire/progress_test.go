package wire

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
)

// A client with a token hears progress at least each 25 s until the answer: that of the server, and
// in between some of the gateway's own, which rises by less than the server's does.
func TestKeptProgress(t *testing.T) {
	const server = `{"progressToken":"t","progress":%s,"total":10}`
	for name, c := range map[string]struct {
		accept, token string
		every         time.Duration
		said          map[time.Duration]string // by the server
		want          []string                 // progress, and when, until the answer after 80 s
	}{
		"silence": {mcp.TypeSSE, `"t"`, 25 * time.Second, nil, []string{"0.000001 25 s", "0.000002 50 s", "0.000003 75 s"}},
		"between": {
			mcp.TypeSSE, `"t"`, 25 * time.Second,
			map[time.Duration]string{20 * time.Second: "3", 65 * time.Second: "4.5"},
			[]string{"3", "3.000001 45 s", "4.5"},
		},
		"a power of two": {
			mcp.TypeSSE, `"t"`, 25 * time.Second, map[time.Duration]string{time.Second: "17179869184"},
			[]string{"17179869184", "17179869184.000004 26 s", "17179869184.000008 51 s", "17179869184.00001 76 s"},
		},
		"nothing is above it": {
			mcp.TypeSSE, `"t"`, 25 * time.Second, map[time.Duration]string{time.Second: "1.7976931348623157e308"},
			[]string{"1.7976931348623157e308"},
		},
		"no token":  {mcp.TypeSSE, ``, 25 * time.Second, nil, nil},
		"off":       {mcp.TypeSSE, `"t"`, 0, nil, nil},
		"no stream": {mcp.TypeJSON, `"t"`, 25 * time.Second, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/mcp", nil)
				r.Header.Set("Accept", c.accept)
				w := httptest.NewRecorder()
				o := KeptProgress{Every: c.every, About: "research"}
				if c.token != "" {
					o.Token = json.RawMessage(c.token)
				}
				id, err := jsonrpc.ParseID([]byte(`1`))
				if err != nil {
					t.Fatal(err)
				}
				x := NewExchange(w, r, ExchangeOptions{Progress: o})
				defer x.Close()
				for after, n := range c.said {
					time.AfterFunc(after, func() { _ = x.Notify(mcp.NotifyProgress, json.RawMessage(strings.Replace(server, "%s", n, 1))) })
				}
				<-time.After(80 * time.Second)
				x.Result(id, json.RawMessage(`{}`))
				<-time.After(time.Minute) // nothing comes after the answer

				var got []string
				for line := range strings.Lines(w.Body.String()) {
					data, ok := strings.CutPrefix(line, "data: ")
					if !ok || !strings.Contains(data, mcp.NotifyProgress) {
						continue
					}
					n, _ := jsonrpc.Get(json.RawMessage(data), "params", "progress")
					heard := string(n)
					if message, ok := jsonrpc.GetString(json.RawMessage(data), "params", "message"); ok {
						_, since, _ := strings.Cut(message, "research is still running, ")
						heard += " " + since
						if strings.Contains(data, "total") {
							t.Errorf("a total in %s", data)
						}
					}
					got = append(got, heard)
				}
				if strings.Join(got, "|") != strings.Join(c.want, "|") {
					t.Errorf("heard %q, want %q in\n%s", got, c.want, w.Body.String())
				}
			})
		})
	}
}
