package legacy_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"taskgate/gateway/legacy"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/internal/wiretest"
)

// A client that takes partial results hears all of them on its session's stream, in order and before the end (P1–P4), of tasks of its session; and tools say
// so to it (P9).
func TestLegacyPartials(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newDraftWorld(t, takePartial)
		lacks(t, w.c.do(w.a, mcp.MethodToolsList, `{}`), `"never","inputSchema":{"type":"object"},"execution"`)
		says(t, w.c.do(w.a, mcp.MethodToolsList, `{}`), `"execution":{"taskSupport":"optional","streamPartial":true}`)
		live := w.c.begin(w.a, "")
		tokens, many := w.c.call(w.a, "tokens"), w.c.call(w.a, "many")
		wiretest.Wait(15 * time.Second)
		r := newPartialReader(t)
		r.take(live.said())
		if r.text[tokens] != "Once " || len(r.text[many]) < 10 {
			t.Errorf("live: %v", r.text)
		}
		seen := len(live.said())
		failed := w.c.call(w.a, "breaks")
		wiretest.Wait(5 * time.Minute)
		r.take(live.said()[seen:])
		if !r.over[tokens] || !r.over[many] || r.text[tokens] != "Once upon a " || r.text[many] != strings.Repeat("x", 200) || r.text[failed] != "so far " {
			t.Errorf("over: %v, read: %v", r.over, r.text)
		}
		cancelled := w.c.call(w.a, "forever")
		seen = len(live.said())
		wiretest.Wait(11 * time.Second)
		w.c.do(w.a, mcp.MethodTasksCancel, `{"taskId":"`+string(cancelled)+`"}`)
		wiretest.Wait(time.Minute)
		r.take(live.quit()[seen:])
		if r.text[cancelled] != "a" || !r.over[cancelled] {
			t.Errorf("of a cancelled task: %q, over %t", r.text[cancelled], r.over[cancelled])
		}
		// The result is the server's own (P6).
		says(t, w.c.do(w.b, mcp.MethodTasksResult, `{"taskId":"`+string(tokens)+`"}`), `"content":[{"type":"text","text":"Once upon a \u003ctime"},{"type":"text","text":"end"}]`)
	})
}

// A stream that is resumed goes on where the client was, at the other replica too; one
// that is not begins each task anew.
func TestLegacyPartialsResumed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newDraftWorld(t, takePartial)
		r := newPartialReader(t)
		first := w.c.begin(w.a, "")
		many := w.c.call(w.a, "many")
		wiretest.Wait(30 * time.Second)
		r.take(first.quit())
		if len(r.text[many]) < 25 || first.lastID() == "" {
			t.Fatalf("read %q, last event %q", r.text[many], first.lastID())
		}
		wiretest.Wait(10 * time.Second)
		for _, g := range []*legacyServer{w.b, w.b, w.a} {
			next := w.c.begin(g, "", mcp.HeaderLastEventID, first.lastID())
			wiretest.Wait(20 * time.Second)
			r.take(next.quit())
			first = next
			wiretest.Wait(5 * time.Second)
		}
		last := w.c.begin(w.b, "", mcp.HeaderLastEventID, first.lastID())
		anew := newPartialReader(t)
		wiretest.Wait(20 * time.Second)
		r.take(last.quit())
		fresh := w.c.begin(w.a, "")
		wiretest.Wait(5 * time.Minute)
		anew.take(fresh.quit())
		anew.wantAll(many, strings.Repeat("x", 200))
		if n := len(r.text[many]); n < 120 {
			t.Errorf("resumed, it read %d pieces", n)
		}
	})
}

// A client that reads slowly misses nothing, and holds up no more than its own stream.
func TestLegacyPartialsToASlowClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newDraftWorld(t, takePartial)
		slow := &hearing{t: t, w: &tape{header: http.Header{}, full: make(chan struct{}, 1000)}, done: make(chan struct{})}
		slow.leave = func() {}
		go func() {
			defer close(slow.done)
			w.b.Handler().ServeHTTP(slow.w, w.c.request(t.Context(), http.MethodGet, ""))
		}()
		synctest.Wait() // the stream is there before the task
		many := w.c.call(w.a, "many")
		wiretest.Wait(4 * time.Minute)
		if n := len(slow.said()); n != 0 {
			t.Fatalf("%d messages to a client that does not read", n)
		}
		logged := 0
		if _, _, err := w.sessions.Since(t.Context(), w.c.session, legacy.GetStream, 0, func(int64, []byte) { logged++ }); err != nil || logged > 16+2 {
			t.Errorf("%d messages wait for it, %v", logged, err)
		}
		close(slow.w.full)
		wiretest.Wait(time.Minute)
		r := newPartialReader(t)
		r.take(slow.said())
		r.wantAll(many, strings.Repeat("x", 200))
		w.c.request(t.Context(), http.MethodDelete, "")
		streamsOf(w.b.Gateway).Close(t.Context())
		<-slow.done
	})
}

// A client that opted in to nothing gets not one message, nor one member, of either
// draft, whatever it asks for; nor does one that opted in get them from what others
// have made.
func TestLegacyDraftsUnasked(t *testing.T) {
	words := []string{"partial", "seqNr", `"seq"`, "isComplete", mcp.MetaFallbackMode, "streamPartial", "streaming"}
	for _, capabilities := range []string{``, `"tasks":{}`, `"tasks":{"streaming":{},"responses":{}}`, `"tasks":{"streaming":{"partial":true},"responses":{"modes":"task"}}`} {
		synctest.Test(t, func(t *testing.T) {
			w := newDraftWorld(t, capabilities)
			live := w.c.begin(w.b, "")
			var all [][]byte
			ask := func(method, params string) []byte {
				got := w.c.ask(w.a, method, params).one()
				all = append(all, got)
				return got
			}
			ask(mcp.MethodToolsList, `{}`)
			got := ask(mcp.MethodToolsCall, `{"name":"tokens","task":{"responseModes":["immediate","streaming"]}}`)
			id, ok := jsonrpc.GetString(got, "result", "task", "taskId")
			if !ok {
				t.Fatalf("no task: %s", got)
			}
			wiretest.Wait(20 * time.Second)
			ask(mcp.MethodTasksGet, fmt.Sprintf(`{"taskId":%q}`, id))
			wiretest.Wait(time.Minute)
			ask(mcp.MethodTasksResult, fmt.Sprintf(`{"taskId":%q,"lastSeqNr":0}`, id))
			ask(mcp.MethodTasksList, `{}`)
			plain := w.c.ask(w.a, mcp.MethodToolsCall, `{"name":"tokens","_meta":{"progressToken":"p"}}`)
			<-plain.done
			all = append(append(all, plain.said()...), live.quit()...)
			for _, text := range all {
				lacks(t, text, words...)
			}
			if len(plain.said()) != 4 {
				t.Errorf("a blocking call said %s", plain.said())
			}
		})
	}
}

// Of a task that another session of nobody in particular has made, a client hears and
// reads nothing. Of its own tasks it hears the partial results without numbers of blocks.
func TestLegacyDraftsOfOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newDraftWorld(t, takeAll)
		mine := w.c.begin(w.b, "")
		h, s := w.stream(t, "tokens")
		other := newClient(t, w.b, takeAll)
		theirs := other.begin(w.b, "")
		wiretest.Wait(2 * time.Minute)
		s.take(h.said()[1:])
		s.merged(w.c, w.b)
		for _, text := range mine.quit() {
			lacks(t, text, "seqNr")
		}
		if n := len(theirs.quit()); n != 0 {
			t.Errorf("another session heard %d messages", n)
		}
	})
}
