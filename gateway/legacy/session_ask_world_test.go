package legacy_test

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"taskgate/gateway/legacy"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/internal/wiretest"
	"taskgate/shim"
)

// result begins to wait for the result of a task.
func (w *world) result(g *legacyServer, id shim.ID) *hearing {
	w.t.Helper()
	return w.c.ask(g, mcp.MethodTasksResult, `{"taskId":"`+string(id)+`"}`)
}

// resume goes on with a stream after the last event of it that has come.
func (w *world) resume(g *legacyServer, of *hearing) *hearing {
	w.t.Helper()
	return w.c.begin(g, "", mcp.HeaderLastEventID, of.lastID())
}

// answer answers a question.
func (w *world) answer(g *legacyServer, question string) {
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
func (w *world) closing(open ...*hearing) {
	for _, a := range open {
		a.leave()
		<-a.done
	}
	wiretest.Wait(time.Second)
}
