package legacy_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"taskgate/internal/mcp"
	"taskgate/shim/shimtest/fake"
)

// What a server does wrong with a result, every client gets in the same way, plainly and
// from a task.
func TestBrokenServers(t *testing.T) {
	for name, c := range map[string]struct {
		result string // after the content
		want   string
		lacks  []string
	}{
		"a stray resultType":      {`,"resultType":"task"`, `"text":"ok"`, []string{`"task"`}},
		"a harmless one":          {`,"resultType":"complete"`, `"text":"ok"`, nil},
		"a stray related-task":    {`,"_meta":{"io.modelcontextprotocol/related-task":{"taskId":"theirs"},"a":1.0}`, `"a":1.0`, []string{"theirs"}},
		"bytes that are no UTF-8": {",\"x\":\"\xff\"", "\"x\":\"\uFFFD\"", nil},
	} {
		t.Run(name, func(t *testing.T) {
			s := fake.New(t, fake.Stateful)
			s.Tool("t", fake.Stream(`{"jsonrpc":"2.0","id":{id},"result":{"content":[{"type":"text","text":"ok"}]`+c.result+`}}`))
			url := newBefore(t, s, nil)
			check := func(who, got string) {
				t.Helper()
				for _, text := range c.lacks {
					if strings.Contains(got, text) {
						t.Errorf("%s: %s", who, got)
					}
				}
				if !strings.Contains(got, c.want) {
					t.Errorf("%s: %s", who, got)
				}
			}
			client := newRawClient(t, url).initialize("")
			_, plain := client.post(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"t"}}`)
			check("a plain call", plain)
			_, result := client.post(fmt.Sprintf(resultBody, client.task("t")))
			check("from a task", result)
			status, body := exchange(t, asked{caps: `{}`, method: mcp.MethodToolsCall, params: `{"name":"t"}`}, url)
			if status != http.StatusOK || !strings.Contains(body, `"resultType":"complete"`) {
				t.Errorf("a modern client: %d %s", status, body)
			}
			check("a modern client", body)
		})
	}
}

// Progress that counts back reaches no client: what does not rise is left out.
func TestProgressCountsBack(t *testing.T) {
	progress := func(n string) string {
		return `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":{token},"progress":` + n + `}}`
	}
	for name, mode := range map[string]fake.Mode{"modern": fake.Modern, "legacy": fake.Stateful} {
		t.Run(name, func(t *testing.T) {
			s := fake.New(t, mode)
			answer := fake.Stream(progress("2"), progress("1"), progress("2"), progress("3"), `{"jsonrpc":"2.0","id":{id},"result":{"resultType":"complete","messages":[],"content":[]}}`)
			s.Capabilities(`{"tools":{},"prompts":{}}`)
			s.Tool("t", answer)
			s.On("prompts/get", answer)
			url := newBefore(t, s, nil)
			client := newRawClient(t, url).initialize("")
			check := func(who, got string) {
				t.Helper()
				var heard []string
				for _, rest := range strings.Split(got, `"progress":`)[1:] {
					heard = append(heard, rest[:1])
				}
				if strings.Join(heard, " ") != "2 3" {
					t.Errorf("%s: %s", who, got)
				}
			}
			for _, method := range []string{mcp.MethodToolsCall, mcp.MethodPromptsGet} {
				_, got := client.post(`{"jsonrpc":"2.0","id":1,"method":"` + method + `","params":{"name":"t","_meta":{"progressToken":"p"}}}`)
				check("legacy "+method, got)
				a := asked{method: method, params: `{"name":"t"}`, caps: `{},"progressToken":"p"`}
				_, got = exchange(t, a, url)
				check("modern "+method, got)
			}
		})
	}
}
