package legacy

import (
	"context"
	"errors"
	"slices"
	"sync"

	"taskgate/gateway/endpoint"
	"taskgate/gateway/translate"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/shim"
	"taskgate/shim/dialect"
)

// mostTold is how many tasks of a session its client is told of. For other tasks it has to ask, which it must
// be ready to do anyway (L34).
const mostTold = 100

// withTasks returns the state with the tasks made added, and those told removed. If there are too many, the
// oldest go. The old list stays as it is: others may read it.
func (st sessionState) withTasks(made, told []shim.ID) sessionState {
	ids := append(slices.Clone(st.Tasks), made...)
	ids = slices.DeleteFunc(ids, func(id shim.ID) bool { return slices.Contains(told, id) })
	st.Tasks = ids[max(0, len(ids)-mostTold):]
	return st
}

// taskNotes gathers the changes of a session's tasks for its state, which concurrent calls would contend for:
// there is one write at a time, and calls go on meanwhile.
type taskNotes struct {
	mu         sync.Mutex
	made, told []shim.ID
	writing    bool
}

// noteTasks notes for the state of the session which tasks were made in it, and of whose end its client has
// been told. A failed write is dropped: the client has its tasks in any case.
func (s *session) noteTasks(made, told []shim.ID) {
	n := &s.notes
	n.mu.Lock()
	defer n.mu.Unlock()
	n.made = append(n.made, made...)
	n.told = append(n.told, told...)
	if !n.writing {
		n.writing = s.table.outlive(s.writeNotes)
	}
}

// takeChange returns what is to be written; more is false, and the writing over, once nothing is left.
func (n *taskNotes) takeChange() (made, told []shim.ID, more bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	made, told = n.made, n.told
	n.made, n.told = nil, nil
	n.writing = len(made)+len(told) > 0
	return made, told, n.writing
}

// writeNotes writes until nothing is left. Each write wakes the holder of the session's stream.
func (s *session) writeNotes() {
	for {
		made, told, more := s.notes.takeChange()
		if !more {
			return
		}
		ctx, cancel := s.table.withPatience(context.Background())
		_ = s.updateState(ctx, func(st sessionState) (sessionState, error) { return st.withTasks(made, told), nil })
		cancel()
	}
}

// taskNotifier tells the client of a GET stream of the tasks of its session (L34), and asks the questions of
// tasks and of the server. It follows everything that the record of the session names. The client hears of a
// task when the stream opens, and after every change until its end. A client that reads slowly gets only the
// newest state of each task.
type taskNotifier struct {
	e   *endpoint.Endpoint
	s   *session
	w   *writer
	p   shim.Principal
	end func() // ends the stream

	tasks bool // the session can make tasks
	able  bool // its client can be asked
	set   shim.Set
	// follow begins to follow the set; it belongs to the writer.
	follow func()
	known  map[shim.ID]bool // what was added to the set; belongs to the writer

	// told and progress are what the client last heard of each task.
	told, progress map[shim.ID]string
	asks           *asker
}

func newTaskNotifier(e *endpoint.Endpoint, w *writer, p shim.Principal, tasks bool, end func()) *taskNotifier {
	st := w.s.currentState()
	p = w.s.principalOf(p)
	return &taskNotifier{
		e: e, s: w.s, w: w, p: p, end: end,
		tasks: tasks, able: mcp.MayBeAsked(st.Capabilities),
		set: e.Shim.NewSet(p, e.Name), known: make(map[shim.ID]bool),
		told: make(map[shim.ID]string), progress: make(map[shim.ID]string),
	}
}

// startFollowing follows until stop is called, from the first task or question on: most streams never have any.
func (t *taskNotifier) startFollowing(ctx context.Context) (stop func()) {
	if !t.tasks && !t.able {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	t.asks = newAsker(ctx, t.s, t.w.asked, askLine{
		ask:  t.w.askOnStream,
		over: func(m []byte) { _ = t.w.sendMessages(ctx, true, m) },
	})
	var running sync.WaitGroup
	t.follow = sync.OnceFunc(func() {
		running.Go(func() {
			err := t.set.Follow(ctx, func(u shim.Update) error { return t.takeUpdate(ctx, u) })
			if errors.Is(err, shim.ErrBehind) {
				t.end() // a client must not take what it has for everything
			}
		})
	})
	if c := t.w.count; c != nil && t.tasks {
		for _, id := range c.unsent {
			t.known[id] = true // if the record names it all the same
			t.set.Add(shim.Tracked{ID: id, Pieces: true, Live: true})
			t.follow()
		}
	}
	return func() {
		cancel()
		running.Wait()
		t.asks.work.Wait()
	}
}

// readRecord adds to the follow set what the record of the session names. Only the writer calls it.
func (t *taskNotifier) readRecord(ctx context.Context) {
	ctx, cancel := t.s.table.withPatience(ctx)
	defer cancel()
	st, err := t.s.loadState(ctx)
	if err != nil {
		return // it is read again
	}
	named := make(map[shim.ID]bool, len(st.Tasks)+len(st.SessionQuestions))
	add := func(ids []shim.ID, k shim.Tracked) {
		for _, id := range ids {
			switch named[id] = true; {
			case t.known[id]:
			case slices.Contains(t.w.ended, id): // the record has come back older, and perhaps the task with it
				t.s.noteTasks(nil, []shim.ID{id})
			default:
				k.ID = id
				if c := t.w.count; c != nil {
					k.From, k.Live = c.from[id], c.fresh[id]
				}
				t.set.Add(k)
				t.follow()
			}
		}
	}
	if t.tasks {
		add(st.Tasks, shim.Tracked{Pieces: t.w.count != nil})
	}
	if t.able {
		owner := t.s.owner()
		add(st.SessionQuestions, shim.Tracked{Hidden: true, Of: &owner})
	}
	t.known = named
}

// takeUpdate takes an update of the follow set.
func (t *taskNotifier) takeUpdate(ctx context.Context, u shim.Update) error {
	switch {
	case u.Gone:
		t.s.settleSessionQuestion(u.ID) // its runner is gone
	case u.Task == nil:
		return t.tellPartials(ctx, u)
	default:
		if t.able {
			t.asks.takeState(*u.Task)
		}
		if u.Task.Visible {
			return t.tellState(ctx, *u.Task)
		}
		if u.Task.Status.Final() { // it was of no task
			t.s.settleSessionQuestion(u.ID)
		}
	}
	return context.Cause(ctx)
}

func (t *taskNotifier) tellPartials(ctx context.Context, u shim.Update) error {
	messages := make([][]byte, len(u.Pieces))
	for i, content := range u.Pieces {
		messages[i] = jsonrpc.AppendNotification(nil, mcp.NotifyTaskPartial, dialect.Legacy.Partial(u.ID, u.First+int64(i), content))
	}
	return t.w.sendMessages(ctx, true, messages...)
}

// noteEnd notes the task whose end a message tells. The newest mostTold are kept: the record names no more
// tasks.
func (w *writer) noteEnd(message []byte) {
	if id, status := statusOf(message); status.Final() {
		w.ended = append(w.ended, id)
		w.ended = w.ended[max(0, len(w.ended)-mostTold):]
	}
}

// tellState sends the progress and the state of a task, if they are new to the client: the answer to its call
// told it how the task began.
func (t *taskNotifier) tellState(ctx context.Context, task shim.Task) error {
	var messages [][]byte
	progress := t.progress[task.ID]
	if p := task.Progress; p.Token != nil && p.Params != nil && progress != string(p.Params) {
		progress = string(p.Params)
		params := translate.Unrelated(jsonrpc.With(p.Params, p.Token, mcp.MetaProgressToken)) // the token is good until the task ends (L35)
		messages = append(messages, jsonrpc.AppendNotification(nil, mcp.NotifyProgress, dialect.Legacy.Related(params, task.ID)))
	}
	params := dialect.Legacy.Got(task)
	status, _ := jsonrpc.GetString(params, "status")
	says := status + " " + task.StatusMessage
	before, known := t.told[task.ID]
	if before != says && (known || says != string(shim.Working)+" ") {
		messages = append(messages, jsonrpc.AppendNotification(nil, mcp.NotifyTaskStatus, params))
	}
	if len(messages) > 0 {
		// It comes after partial results, which go out through the log.
		if err := t.w.sendMessages(ctx, t.w.count != nil, messages...); err != nil {
			return err
		}
	}
	t.told[task.ID], t.progress[task.ID] = says, progress
	if task.Status.Final() {
		delete(t.told, task.ID)
		delete(t.progress, task.ID)
		t.s.noteTasks(nil, []shim.ID{task.ID})
	}
	return nil
}
