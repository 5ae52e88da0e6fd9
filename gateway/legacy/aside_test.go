package legacy_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"taskgate/gateway/config"
	"taskgate/internal/mcp"
)

// withAsides adds tools that ask on the GET stream of the session.
func withAsides(s *sdk.Server) {
	for name, ask := range map[string]func(context.Context, *sdk.ServerSession) (string, error){"ask": askForAll, "colour": askColour} {
		addTool(s, name, func(ctx context.Context, r *sdk.CallToolRequest) (string, error) {
			// A server of the go-sdk asks on the GET stream with a context that does not name the request.
			beside, cancel := context.WithCancel(context.Background())
			defer cancel()
			defer context.AfterFunc(ctx, cancel)()
			return ask(beside, r.Session)
		})
	}
}

// newAsidePair is one session at two replicas, in front of a server that asks on the GET
// stream of it. The first replica holds that stream: it has the client's.
func newAsidePair(t *testing.T) (stack *legacyReplicas, a, b *rawClient, get *sseClient) {
	t.Helper()
	stack = newLegacyReplicas(t, func(c *config.Config) { c.ResumeAfter = 100 * time.Millisecond })
	withAsides(stack.server)
	a, b = stack.beginBoth(t, canBeAsked)
	get = openSSE(t, a, http.MethodGet, "", "")
	stack.until(t, func(wait <-chan time.Time) bool {
		for {
			select {
			case line := <-get.lines:
				if strings.Contains(line, "tools/list_changed") {
					return true
				}
			case <-wait:
				return false
			}
		}
	})
	return stack, a, b, get
}

// until has the server tell of a change until it is heard of, which is when the GET
// stream of the session is there. What a server of the go-sdk asks before is lost.
func (r *legacyReplicas) until(t *testing.T, heard func(wait <-chan time.Time) bool) {
	t.Helper()
	for i := range 20 {
		r.addTool(fmt.Sprint("more", i))
		if heard(time.After(time.Second)) {
			return
		}
	}
	t.Fatal("timed out: the GET stream")
}

// TestReplicasAskAside: a question on the GET stream of a session is asked on the stream of
// the call where that runs at the replica which hears it. Of a call at the other one the
// client is asked on its GET stream, as outside of any call. Of two answers, at any
// replica, one counts.
func TestReplicasAskAside(t *testing.T) {
	_, a, b, get := newAsidePair(t)
	for i, at := range []*rawClient{a, b, a, b} {
		id := fmt.Sprint("c", i)
		call := openSSE(t, at, http.MethodPost, fmt.Sprintf(`{"jsonrpc":"2.0","id":%q,"method":"tools/call","params":{"name":"colour"}}`, id), "")
		asked, from := call, a
		if at == b {
			asked = get
		}
		if i > 1 {
			from = b
		}
		question := asked.question("")
		for _, colour := range []string{"blue", "green"} {
			from.answer(question, colour)
		}
		call.wantEnd(id, "accept blue")
	}
}

// TestReplicasTaskAsksAside: where the call is a task, its client is asked on its GET
// stream either way. The question is the task's only at the replica that runs it.
func TestReplicasTaskAsksAside(t *testing.T) {
	_, a, b, get := newAsidePair(t)
	for _, at := range []*rawClient{a, b} {
		task := at.task("colour")
		related, status := task, "input_required"
		if at == b {
			related, status = "", "working"
		}
		id := get.question(related)
		if _, body := a.post(fmt.Sprintf(`{"jsonrpc":"2.0","id":"g","method":"tasks/get","params":{"taskId":%q}}`, task)); !strings.Contains(body, `"status":"`+status+`"`) {
			t.Errorf("while it asks: %s, want %s", body, status)
		}
		for _, c := range []*rawClient{a, b} {
			c.answer(id, "red")
		}
		if _, body := a.post(fmt.Sprintf(resultBody, task)); !strings.Contains(body, "accept red") {
			t.Errorf("result: %s", body)
		}
	}
}

// TestReplicasAskAsideSDK: an ordinary server asks an ordinary client for all that there
// is, beside its calls, while each message of the client's comes to another replica than
// the one before.
func TestReplicasAskAsideSDK(t *testing.T) {
	for _, version := range []string{mcp.Version20251125, mcp.Version20250618} {
		t.Run(version, func(t *testing.T) {
			stack := newLegacyReplicas(t, nil)
			withAsides(stack.server)
			changed := make(chan struct{}, 100)
			c := stack.asked(t, version, &sdk.ClientOptions{
				ElicitationHandler: red, CreateMessageHandler: sample,
				ToolListChangedHandler: func(context.Context, *sdk.ToolListChangedRequest) { changed <- struct{}{} },
			})
			stack.until(t, func(wait <-chan time.Time) bool {
				select {
				case <-changed:
					return true
				case <-wait:
					return false
				}
			})
			for range 3 {
				tool, err := c.CallTool(t.Context(), &sdk.CallToolParams{Name: "ask"})
				if err != nil || textOf(tool) != "accept red m1 2" {
					t.Errorf("tool: %v, %v", tool, err)
				}
			}
		})
	}
}
