package legacy_test

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/internal/wiretest"
	"taskgate/shim"
)

// The conversations with clients are the transcripts testdata/legacy/handle*.txtar.
// Here is what they cannot show.

// handlePlay is a gateway that gives clients without tasks a task at once, of a tool
// that never ends.
type handlePlay struct {
	*world
	task shim.ID
}

const handleConfig = `
upstreams:
  - name: up
    url: http://up.example/
    without_tasks: handle
    without_tasks_after: 30s
    defaults: {tasks: required, poll_interval: 1s}
`

func newHandlePlay(t *testing.T) *handlePlay {
	t.Helper()
	c := parseConfig(t, handleConfig)
	p := &handlePlay{world: newWorld(t).start(upstreamScript{
		Era: "legacy", Raw: json.RawMessage(`{"capabilities":{"tools":{}},"serverInfo":{"name":"up","version":"1"}}`),
		Replies: map[string]scriptReply{"tools/call": {Blocks: true}},
	}, c, "", mcp.Version20250618)}
	p.task = shim.ID(idOfTask(t, string(p.c.do(p.a, mcp.MethodToolsCall, `{"name":"slow"}`))))
	return p
}

// reads serves a call of the tool by a client of either era.
func (p *handlePlay) reads(ctx context.Context, modern bool) *httptest.ResponseRecorder {
	const call = `{"jsonrpc":"2.0","id":"r","method":"tools/call","params":{"name":"task_result","arguments":{"taskId":"%s"},"_meta":{%s"progressToken":"p"}}}`
	if !modern {
		return serve(p.t, p.a.Handler(), ctx, "POST", p.c.session, fmt.Sprintf(call, p.task, ""))
	}
	r, _, _ := wiretest.ParseRequest(p.t, "POST /up/mcp\n\n"+fmt.Sprintf(call, p.task, "$META,")+"\n")
	rec := httptest.NewRecorder()
	p.a.Handler().ServeHTTP(rec, r.WithContext(ctx))
	return rec
}

// waiting begins such a call and lets five seconds pass.
func (p *handlePlay) waiting(ctx context.Context, modern bool) <-chan *httptest.ResponseRecorder {
	done := make(chan *httptest.ResponseRecorder, 1)
	go func() { done <- p.reads(ctx, modern) }()
	<-time.After(5 * time.Second)
	synctest.Wait()
	return done
}

// eachEra runs a test in a bubble, for clients of both.
func eachEra(t *testing.T, f func(t *testing.T, modern bool)) {
	for name, modern := range map[string]bool{"legacy": false, "modern": true} {
		inBubble(t, name, func(t *testing.T) { f(t, modern) })
	}
}

// Whenever the status message changes, the caller has it as progress that rises.
func TestTaskResultProgress(t *testing.T) {
	eachEra(t, func(t *testing.T, modern bool) {
		p := newHandlePlay(t)
		done := p.waiting(t.Context(), modern)
		for i, message := range []string{"one", "two", "two", `th"ree`} {
			change := shim.Change{Op: fmt.Sprint("test-", i), StatusMessage: &message}
			wiretest.Must(p.store.Apply(t.Context(), p.task, nil, change))(t)
			<-time.After(time.Second)
		}
		wiretest.Must(p.a.shim.Cancel(t.Context(), shim.Principal{}, "up", p.task))(t)
		rec := <-done
		var heard []string
		for _, text := range wiretest.MessagesOf(rec.Header().Get("Content-Type"), rec.Body.Bytes()) {
			m := wiretest.Must(jsonrpc.Parse(text))(t)
			if m.Method == mcp.NotifyProgress {
				heard = append(heard, string(m.Params))
			}
		}
		want := []string{
			`{"progressToken":"p","progress":1,"message":"one"}`,
			`{"progressToken":"p","progress":2,"message":"two"}`,
			`{"progressToken":"p","progress":3,"message":"th\"ree"}`,
		}
		if strings.Join(heard, "\n") != strings.Join(want, "\n") {
			t.Errorf("heard %q", heard)
		}
		if !strings.Contains(rec.Body.String(), "was cancelled") {
			t.Errorf("the end: %s", rec.Body)
		}
	})
}

// A replica that stops ends the wait at once: another one goes on with it.
func TestTaskResultOnAStoppingReplica(t *testing.T) {
	eachEra(t, func(t *testing.T, modern bool) {
		p := newHandlePlay(t)
		done := p.waiting(t.Context(), modern)
		for range 2 { // the second one begins after the end
			start := time.Now()
			wiretest.Check(t, p.a.Close(t.Context()))
			if rec := <-done; !strings.Contains(rec.Body.String(), `"text":"status: working; `) || time.Since(start) != 0 {
				t.Errorf("after %v: %s", time.Since(start), rec.Body)
			}
			done = p.waiting(t.Context(), modern)
		}
		<-done
	})
}

// A caller who goes, or a legacy one who cancels its call of the tool, ends the wait, and not the task.
func TestTaskResultCallerLeaves(t *testing.T) {
	for name, c := range map[string]struct{ modern, cancels bool }{"legacy": {}, "modern": {modern: true}, "legacy, cancels": {cancels: true}} {
		inBubble(t, name, func(t *testing.T) {
			p := newHandlePlay(t)
			ctx, leave := context.WithCancel(t.Context())
			defer leave()
			done := p.waiting(ctx, c.modern)
			start := time.Now()
			if c.cancels {
				serve(p.t, p.a.Handler(), t.Context(), "POST", p.c.session, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"r"}}`)
			} else {
				leave()
			}
			if rec := <-done; time.Since(start) != 0 || c.cancels && strings.Contains(rec.Body.String(), `"id"`) {
				t.Errorf("after %v: %s", time.Since(start), rec.Body)
			}
			if now, err := p.a.shim.Peek(t.Context(), shim.Principal{}, "up", p.task); err != nil || now.Status != shim.Working {
				t.Errorf("the task: %+v, %v", now.Status, err)
			}
		})
	}
}

// While the store is away, the caller is told so in words, and that the work goes on: a model gives
// up at an error.
func TestTaskResultWithoutStore(t *testing.T) {
	eachEra(t, func(t *testing.T, modern bool) {
		p := newHandlePlay(t)
		for _, c := range []struct{ when, want string }{
			{"while waiting", `"text":"status: working; `},
			{"from the start", `"text":"status: unknown; taskId: ` + string(p.task) + `; the task cannot be read just now; most likely the work goes on, `},
		} {
			done := p.waiting(t.Context(), modern)
			p.store.dark.Store(true)
			rec := <-done
			if got := rec.Body.String(); rec.Code != http.StatusOK || !strings.Contains(got, c.want) || strings.Contains(got, `"isError":true`) {
				t.Errorf("dark %s: %d %s", c.when, rec.Code, got)
			}
		}
	})
}

// A model may ask the tool of another server of the gateway: it reads the caller's task there as well.
func TestTaskResultOfAnotherServer(t *testing.T) {
	eachEra(t, func(t *testing.T, modern bool) {
		c := parseConfig(t, handleConfig+`
  - name: other
    url: http://other.example/
    without_tasks: handle
`)
		g := newWorld(t).gateway("r", upstreamScript{
			Era: "legacy", Raw: json.RawMessage(`{"capabilities":{"tools":{}}}`),
			Replies: map[string]scriptReply{"tools/call": {After: "30s", Result: json.RawMessage(`{"content":[{"type":"text","text":"found"}]}`)}},
		}, c)
		session := map[string]string{}
		post := func(server, body string) string {
			t.Helper()
			head := "POST\n" + mcp.HeaderSession + ": " + session[server] + "\n\n"
			r := readRequest(t, []byte(head+body))
			if modern {
				r, _, _ = wiretest.ParseRequest(t, "POST /up/mcp\n\n"+body+"\n")
			}
			r.URL.Path = "/" + server + "/mcp"
			rec := httptest.NewRecorder()
			g.Handler().ServeHTTP(rec, r.WithContext(t.Context()))
			session[server] = cmp.Or(session[server], rec.Header().Get(mcp.HeaderSession))
			return rec.Body.String()
		}
		meta := "$META"
		if !modern {
			meta = ""
			for _, server := range []string{"up", "other"} {
				post(server, `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"c","version":"2"}}}`)
			}
		}
		told := post("up", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"slow","_meta":{`+meta+`}}}`)
		got := post("other", `{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"task_result","arguments":{"taskId":"`+idOfTask(t, told)+`"},"_meta":{`+meta+`}}}`)
		wantTexts(t, []byte(got), `"text":"found"`)
	})
}
