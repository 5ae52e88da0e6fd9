package legacy_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"taskgate/gateway/config"
	"taskgate/gateway/legacy"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/internal/wiretest"
	"taskgate/shim"
)

// mortalLogs are sessions whose replicas can die: of the streams that are named in lost,
// nobody hears anything more.
type mortalLogs struct {
	legacy.Sessions
	mu     sync.Mutex
	opened []string
	lost   map[string]bool
	looks  int
	away   int  // so many streams more cannot be opened
	mute   int  // so many questions more are asked whose asker does not hear of it
	shy    bool // no question gets into the log of a GET stream
}

func (m *mortalLogs) Open(ctx context.Context, id, stream string, note []byte) (int64, error) {
	m.mu.Lock()
	m.opened = append(m.opened, stream)
	m.away--
	away := m.away >= 0
	m.mu.Unlock()
	if away {
		return 0, shim.ErrUnavailable
	}
	return m.Sessions.Open(ctx, id, stream, note)
}

func (m *mortalLogs) Ask(ctx context.Context, id, stream, asker, question, void string, message []byte) (int64, string, bool, error) {
	if m.shy && stream == legacy.GetStream {
		return 0, "", false, shim.ErrUnavailable
	}
	no, holder, has, err := m.Sessions.Ask(ctx, id, stream, asker, question, void, message)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.mute--; m.mute >= 0 {
		return 0, "", false, shim.ErrUnavailable
	}
	return no, holder, has, err
}

func (m *mortalLogs) Since(ctx context.Context, id, stream string, after int64, on func(int64, []byte)) (string, []byte, error) {
	state, note, err := m.Sessions.Since(ctx, id, stream, after, on)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.looks++
	if m.lost[stream] {
		state = "lost"
	}
	return state, note, err
}

// kill has the replica of all streams die that have been opened until now.
func (m *mortalLogs) kill() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, stream := range m.opened {
		m.lost[stream] = true
	}
}

// looked is how often the log of a stream was looked at since the last time.
func (m *mortalLogs) looked() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := m.looks
	m.looks = 0
	return n
}

// askWorld is a client of two replicas, with a server whose tools ask it.
type askWorld struct {
	*taskWorld
	logs *mortalLogs
	a, b *legacyServer
	c    *taskClient
}

func newAskWorld(t *testing.T, change func(*config.Config)) *askWorld {
	t.Helper()
	w := &askWorld{taskWorld: newTaskWorld(t)}
	w.logs = &mortalLogs{Sessions: w.sessions, lost: make(map[string]bool)}
	w.sessions = w.logs
	script := upstreamScript{Era: "legacy", Raw: json.RawMessage(`{"capabilities":{"tools":{}}}`), Replies: map[string]scriptReply{
		"tools/call ask":     {Asks: []string{"who?"}},
		"tools/call forever": {Blocks: true},
		"tools/call late":    {Asks: []string{"who?"}, Progress: []json.RawMessage{[]byte(`{}`)}, Every: "60s"},
		"tools/call twice":   {Asks: []string{"who?", "why?"}},
	}}
	for i, g := range []**legacyServer{&w.a, &w.b} {
		c := taskConfig(t)
		if change != nil {
			change(c)
		}
		*g = w.gateway(string(rune('a'+i)), script, c)
	}
	w.c = newDraftClient(t, w.a, `"elicitation":{}`)
	return w
}

// result begins to wait for the result of a task.
func (w *askWorld) result(g *legacyServer, id shim.ID) *hearing {
	w.t.Helper()
	return w.c.ask(g, mcp.MethodTasksResult, `{"taskId":"`+string(id)+`"}`)
}

// resume goes on with a stream after the last event of it that has come.
func (w *askWorld) resume(g *legacyServer, of *hearing) *hearing {
	w.t.Helper()
	return w.c.begin(g, "", mcp.HeaderLastEventID, of.lastID())
}

// answer answers a question.
func (w *askWorld) answer(g *legacyServer, question string) {
	w.t.Helper()
	body := answerBody(question, "red")
	if a := w.c.begin(g, body); a.w.status != http.StatusAccepted {
		w.t.Errorf("an answer: %d", a.w.status)
	}
}

// asked are the ids of the questions that have come, and of those that were taken back,
// each with a minus.
func (a *hearing) asked() (ids []string) {
	a.t.Helper()
	for _, text := range a.said() {
		if _, _, over, ok := legacy.ReadQuestion(text); over {
			id, _ := jsonrpc.GetString(text, "params", "requestId")
			ids = append(ids, "-"+id)
		} else if ok {
			id, _ := jsonrpc.GetString(text, "id")
			ids = append(ids, id)
		}
	}
	return ids
}

// wantAsked wants these questions to have come, and no others.
func (a *hearing) wantAsked(what string, ids ...string) {
	a.t.Helper()
	if got := a.asked(); !slices.Equal(got, ids) {
		a.t.Fatalf("%s: asked %v, want %v, in %s", what, got, ids, strings.Join(slices.Sorted(maps.Keys(set(a.said()))), "\n"))
	}
}

func set(messages [][]byte) map[string]bool {
	m := make(map[string]bool)
	for _, text := range messages {
		m[string(text)] = true
	}
	return m
}

// nth names a question that a task of the script asks.
func nth(id shim.ID, no int) string { return legacy.QuestionName(id, fmt.Sprint("q", no)) }

// closing closes what is open, so that the replicas can end.
func (w *askWorld) closing(open ...*hearing) {
	for _, a := range open {
		a.leave()
		<-a.done
	}
	wiretest.Wait(time.Second)
}
