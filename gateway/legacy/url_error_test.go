package legacy_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	sdkrpc "github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/internal/wiretest"
)

// pageURL must not get into texts and logs.
const pageURL = "https://x.example/connect?k=secret-page"

// gated is a tool of a server of 2025-11-25 that runs once a page has been opened.
type gated struct {
	opened, refused, ran atomic.Int32
}

func addGated(s *sdk.Server) *gated {
	g := &gated{}
	addTool(s, "gated", func(context.Context, *sdk.CallToolRequest) (string, error) {
		if g.opened.Load() == 0 {
			g.refused.Add(1)
			return "", sdk.URLElicitationRequiredError([]*sdk.ElicitParams{
				{Mode: "url", ElicitationID: "el-7", URL: pageURL, Message: "Connect your account"},
			})
		}
		g.ran.Add(1)
		return "connected", nil
	})
	return g
}

func (g *gated) want(t *testing.T, refused, ran int32) {
	t.Helper()
	if g.refused.Load() != refused || g.ran.Load() != ran {
		t.Errorf("the server refused %d times and ran it %d times, want %d and %d", g.refused.Load(), g.ran.Load(), refused, ran)
	}
}

// A server that refuses to begin a call before a page is opened has its page opened by
// a modern client that can, and is called again then, on whichever replica the client
// comes back to: as often as it takes, and run once. Of a client that declines it hears no more.
func TestURLFirstParked(t *testing.T) {
	p := newParking(t, nil)
	g := addGated(p.server)
	a := asked{caps: canAll, method: mcp.MethodToolsCall, params: `{"name":"gated"}`}
	state, pages := a.park(t, p.at[0], "")
	declined := fmt.Sprintf(`,"inputResponses":{%q:{"action":"decline"}},"requestState":%q`, pages[0].key, state)
	wantRefusal(t, a.send(t, p.at[1], declined), mcp.CodeInternal, "did not agree")
	g.want(t, 1, 0)
	state, pages = a.park(t, p.at[0], "")
	if params := string(pages[0].params); len(pages) != 1 || strings.Contains(params, "elicitationId") || !strings.Contains(params, pageURL) {
		t.Errorf("asked %s", params)
	}
	again, same := a.park(t, p.at[1], answering(state, "", pages...)) // agreed, and not done
	if same[0].key == pages[0].key {
		t.Errorf("the key %s is used again", same[0].key)
	}
	g.want(t, 3, 0)
	g.opened.Store(1)
	wantText(t, a.send(t, p.at[0], answering(again, "", same...)), "connected")
	g.want(t, 3, 1)
	wantText(t, a.send(t, p.at[1], answering(again, "", same...)), "connected") // it waits for no more
	g.want(t, 3, 1)
	if strings.Contains(p.log.String(), "secret-page") {
		t.Error("the address is in the log")
	}
}

// In a task it is a question of the task.
func TestURLFirstInATask(t *testing.T) {
	p := newParking(t, nil)
	g := addGated(p.server)
	a := asked{caps: `{"elicitation":{"url":{}},"extensions":{"io.modelcontextprotocol/tasks":{}}}`,
		method: mcp.MethodToolsCall, params: `{"name":"gated"}`}
	get, update := a.makeTask(t, p.at[0], "")
	key, requests := get.awaitQuestion(t, p.at[1])
	if strings.Contains(string(requests), "elicitationId") || !strings.Contains(string(requests), pageURL) {
		t.Errorf("asked %s", requests)
	}
	g.opened.Store(1)
	update.send(t, p.at[1], inputResponses(key, `{"action":"accept"}`))
	wantTexts(t, get.awaitStatus(t, p.at[0], "completed"), "connected")
	g.want(t, 1, 1)
}

// Who cannot be asked is told in words, without the address: the user's, not a model's.
func TestURLFirstInWords(t *testing.T) {
	t.Run("modern", func(t *testing.T) {
		p := newParking(t, nil)
		g := addGated(p.server)
		m := asked{caps: canForm, method: mcp.MethodToolsCall, params: `{"name":"gated"}`}.send(t, p.at[0], "")
		wantText(t, m, "Connect your account")
		if v, _ := jsonrpc.Get(m.Result, "isError"); string(v) != "true" || strings.Contains(string(m.Raw), "secret-page") {
			t.Errorf("told %s", m.Raw)
		}
		g.want(t, 1, 0)
	})
	t.Run("2025-06-18", func(t *testing.T) {
		stack := newLegacyStack(t, false, nil)
		g := addGated(stack.server)
		old := stack.connect(t, mcp.Version20250618, &sdk.ClientOptions{ElicitationHandler: red})
		r, err := old.CallTool(t.Context(), &sdk.CallToolParams{Name: "gated"})
		if err != nil || !r.IsError || !strings.Contains(textOf(r), "Connect your account") || strings.Contains(textOf(r), "secret-page") {
			t.Errorf("the client was told %v, %v", r, err)
		}
		g.want(t, 1, 0)
	})
}

// A client of 2025-11-25 knows the error, and hears on its GET stream that the page is
// done with, under the server's own id.
func TestURLFirstToItsOwnEra(t *testing.T) {
	stack := newLegacyStack(t, false, nil)
	addGated(stack.server)
	done := make(chan string, 1)
	c := stack.connect(t, mcp.Version20251125, &sdk.ClientOptions{
		Capabilities:       &sdk.ClientCapabilities{Elicitation: &sdk.ElicitationCapabilities{URL: &sdk.URLElicitationCapabilities{}}},
		ElicitationHandler: red,
		ElicitationCompleteHandler: func(_ context.Context, r *sdk.ElicitationCompleteNotificationRequest) {
			done <- r.Params.ElicitationID
		},
	})
	_, err := c.CallTool(t.Context(), &sdk.CallToolParams{Name: "gated"})
	var rpc *sdkrpc.Error
	if !errors.As(err, &rpc) || rpc.Code != mcp.CodeURLElicitation || !strings.Contains(string(rpc.Data), pageURL) || !strings.Contains(string(rpc.Data), "el-7") {
		t.Fatalf("was told %v", err)
	}
	stack.completes(t, "el-7")
	wantNext(t, done, "that the page is done with", "el-7")
}

// A client that has no GET stream is told on that of its call, while there is one; the
// id is the one that it was asked with.
func TestElicitationCompleteOnTheCallsStream(t *testing.T) {
	stack := newLegacyReplicas(t, nil)
	done := make(chan string, 1)
	addTool(stack.server, "connect", func(ctx context.Context, r *sdk.CallToolRequest) (string, error) {
		e, err := r.Session.Elicit(ctx, &sdk.ElicitParams{Mode: "url", Message: "open", URL: pageURL, ElicitationID: "el-8"})
		if err != nil {
			return "", err
		}
		stack.completes(t, "el-8")
		select {
		case got := <-done:
			if got != "el-8" {
				t.Errorf("%s is complete", got)
			}
		case <-time.After(wiretest.Patience):
			t.Error("nobody said that the page is done with")
		}
		return e.Action, nil
	})
	var was atomic.Value
	c := stack.connect(t, mcp.Version20251125, &sdk.ClientOptions{
		Capabilities: &sdk.ClientCapabilities{Elicitation: &sdk.ElicitationCapabilities{URL: &sdk.URLElicitationCapabilities{}}},
		ElicitationHandler: func(_ context.Context, r *sdk.ElicitRequest) (*sdk.ElicitResult, error) {
			was.Store(r.Params.ElicitationID)
			return &sdk.ElicitResult{Action: "accept"}, nil
		},
		ElicitationCompleteHandler: func(_ context.Context, r *sdk.ElicitationCompleteNotificationRequest) {
			done <- r.Params.ElicitationID
		},
	}, func(to *sdk.StreamableClientTransport) { to.DisableStandaloneSSE = true })
	r, err := c.CallTool(t.Context(), &sdk.CallToolParams{Name: "connect"})
	if err != nil || textOf(r) != "accept" || was.Load() != "el-8" {
		t.Errorf("%v, %v, asked as %v", r, err, was.Load())
	}
}

// completes has the server say that a page is done with.
func (s *legacyStack) completes(t *testing.T, id string) {
	t.Helper()
	for ss := range s.server.Sessions() {
		wiretest.Check(t, ss.NotifyElicitationComplete(t.Context(), &sdk.ElicitationCompleteParams{ElicitationID: id}))
	}
}
