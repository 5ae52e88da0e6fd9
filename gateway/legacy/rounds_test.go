package legacy_test

import (
	"fmt"
	"strings"
	"testing"

	"taskgate/gateway/config"
	"taskgate/gateway/upstream"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/redistest"
	"taskgate/shim/shimtest/fake"
)

// newBefore starts a gateway with a store in front of a server that does what it is told.
func newBefore(t *testing.T, s *fake.Server, change func(*config.Config)) (url string) {
	t.Helper()
	c := newConfig(change)
	c.Store, c.StateKeys = redistest.Start(t).URL(), []config.StateKey{parkKey}
	return startReplica(t, "a", c, parts{server: upstream.Config{URL: s.URL, Tasks: upstream.TaskUse(c.Upstreams[0].UpstreamTasks)}}).url
}

// A modern server that wants nothing but to be called again with its state is, for a
// client that declares nothing (protocol.md 2.7).
func TestStateWithoutQuestions(t *testing.T) {
	s := fake.New(t, fake.Modern)
	again := func(done string) fake.Behaviour {
		return func(x *fake.Exchange) {
			if state, _ := jsonrpc.GetString(x.Params, "requestState"); state == "later" {
				fake.Result(done)(x)
				return
			}
			fake.Result(`{"resultType":"input_required","requestState":"later"}`)(x)
		}
	}
	s.Capabilities(`{"tools":{},"prompts":{},"resources":{}}`)
	s.Tool("t", again(`{"resultType":"complete","content":[{"type":"text","text":"done"}]}`))
	s.On("prompts/get", again(`{"resultType":"complete","messages":[{"role":"user","content":{"type":"text","text":"done"}}]}`))
	s.On("resources/read", again(`{"resultType":"complete","ttlMs":0,"cacheScope":"private","contents":[{"uri":"a:b","text":"done"}]}`))
	url := newBefore(t, s, nil)
	for name, body := range map[string]string{
		"tool":     `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"t"}}`,
		"prompt":   `{"jsonrpc":"2.0","id":1,"method":"prompts/get","params":{"name":"p"}}`,
		"resource": `{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":"a:b"}}`,
		"task":     "",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newRawClient(t, url).initialize("")
			if name == "task" {
				body = fmt.Sprintf(resultBody, c.task("t"))
			}
			_, got := c.post(body)
			if !strings.Contains(got, `"done"`) {
				t.Errorf("%s", got)
			}
		})
	}
}
