package legacy_test

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"taskgate/gateway/legacy"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/internal/schematest"
	"taskgate/internal/wiretest"
	"taskgate/shim"
)

// The stream of a session tells of its tasks wherever they were made and run, and
// wherever it is opened again.
func TestTaskStatusOnAnyReplica(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t).start(askScript(), newConfig(nil), "")
		stream := w.c.begin(w.b, "")
		first, second := w.c.call(w.a, "slow"), w.c.call(w.b, "forever")
		wiretest.Wait(30 * time.Second)
		message := "half way"
		wiretest.Must(w.store.Apply(t.Context(), second, nil, shim.Change{Op: "test", StatusMessage: &message}))(t)
		wiretest.Wait(40 * time.Second)
		want := []string{string(second) + " working half way", string(first) + " completed"}
		if got := stream.statuses(); !slices.Equal(got, want) {
			t.Errorf("b told %q, want %q", got, want)
		}
		wiretest.Wait(time.Second)
		w.c.do(w.b, mcp.MethodTasksCancel, `{"taskId":"`+string(second)+`"}`)
		stream = w.c.begin(w.a, "")
		wiretest.Wait(20 * time.Second)
		want = []string{string(second) + " cancelled cancelled by the client"}
		if got := stream.statuses(); !slices.Equal(got, want) {
			t.Errorf("a told %q, want %q", got, want)
		}
	})
}

// Calls at once become tasks at once: noting them for the session's stream holds
// none of them up, and none is forgotten.
func TestManyTasksOfOneSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t).start(askScript(), newConfig(nil), "")
		stream := w.c.begin(w.a, "")
		var calls sync.WaitGroup
		for i := range legacy.MostTold {
			one := *w.c
			one.serial = 1000 * (i + 1)
			calls.Go(func() { one.call(w.a, "slow") })
		}
		calls.Wait()
		wiretest.Wait(70 * time.Second)
		if got := stream.statuses(); len(got) != legacy.MostTold {
			t.Errorf("told %d times, want of the end of %d tasks: %q", len(got), legacy.MostTold, got)
		}
		b, _, err := w.sessions.Get(t.Context(), w.c.session)
		if err != nil || bytes.Contains(b, []byte("tasks")) {
			t.Errorf("nothing is left to tell, but the session knows %s (%v)", b, err)
		}
	})
}

// A page of tasks/list ends with a cursor if there are more; all pages together
// hold every task once, also those of the time in between (L20, L21).
func TestTaskPages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t).start(askScript(), newConfig(nil), "")
		var made []string
		for range 101 {
			made = append(made, string(w.c.call(w.a, "forever")))
			wiretest.Wait(10 * time.Millisecond)
		}
		var listed []string
		params, pages := `{}`, 0
		for params != "" {
			result := w.c.do(w.a, mcp.MethodTasksList, params)
			schematest.Validate(t, mcp.Version20251125, "ListTasksResult", result)
			tasks, _ := jsonrpc.Get(result, "tasks")
			for task := range jsonrpc.Elements(tasks) {
				id, _ := jsonrpc.GetString(task, "taskId")
				listed = append(listed, id)
			}
			params = ""
			if cursor, ok := jsonrpc.GetString(result, "nextCursor"); ok {
				params = string(append(jsonrpc.AppendString([]byte(`{"cursor":`), cursor), '}'))
			}
			if pages++; pages == 1 {
				made = append(made, string(w.c.call(w.a, "forever")))
			}
		}
		if !slices.Equal(listed, made) || pages != 3 {
			t.Errorf("%d tasks on %d pages, want %d in their order", len(listed), pages, len(made))
		}
	})
}

// The GET stream hears of new tasks at once, wherever they are made, and asks what they
// ask.
func TestNewTasksAreHeardOfAtOnce(t *testing.T) {
	inAskWorld(t, nil, func(t *testing.T, w *world) {
		get := w.c.begin(w.b, "")
		var asked []string
		for range 3 {
			asked = append(asked, nameQuestion(w.c.call(w.a, "ask"), 0))
			wiretest.Wait(100 * time.Millisecond)
			get.wantAsked("at once", asked...)
		}
		w.closeAll(get)
	})
}

// A client that has been told that a task has ended hears nothing more of it, though the store comes back as it was
// before that: neither on the stream on which it was told, nor on one that it resumes after it, at any replica.
func TestNothingIsToldAfterTheEnd(t *testing.T) {
	for client, capabilities := range map[string]string{"status": "", "partial results": takePartial} {
		for _, resumes := range []bool{false, true} {
			inBubble(t, fmt.Sprint(client, ", resumes: ", resumes), func(t *testing.T) {
				w := newDraftWorld(t, capabilities)
				w.config.ResumeAfter = time.Second
				stream := w.c.begin(w.a, "")
				wiretest.Wait(5 * time.Second)
				id := w.c.call(w.a, "letters")
				wiretest.Wait(5 * time.Second)
				task := wiretest.Must(w.store.Get(t.Context(), id, shim.Summary))(t)
				session, _, err := w.sessions.Get(t.Context(), w.c.session)
				if err != nil || !bytes.Contains(session, []byte(id)) {
					t.Fatalf("the session is %s (%v)", session, err)
				}
				wiretest.Wait(10 * time.Second)
				said := stream.said()
				if last := string(said[len(said)-1]); !strings.Contains(last, `"completed"`) {
					t.Fatalf("told last: %s", last)
				}
				if resumes {
					stream.quit()
					stream = w.resume(w.b, stream)
					said = nil
				}
				w.store.was.Store(&task)
				_, rev, err := w.sessions.Get(t.Context(), w.c.session)
				if err == nil {
					_, err = w.sessions.Put(t.Context(), w.c.session, rev, session)
				}
				if err != nil {
					t.Fatal(err)
				}
				wiretest.Wait(time.Second)
				w.store.was.Store(nil) // its runner has written the end again
				wiretest.Wait(20 * time.Second)
				if more := stream.quit()[len(said):]; len(more) > 0 {
					t.Errorf("told after the end: %s", more)
				}
				if session, _, err = w.sessions.Get(t.Context(), w.c.session); err != nil || bytes.Contains(session, []byte(id)) {
					t.Errorf("the session is %s (%v)", session, err)
				}
			})
		}
	}
}
