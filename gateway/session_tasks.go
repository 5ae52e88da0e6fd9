package gateway

import (
	"context"
	"slices"
	"sync"
	"time"

	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/shim"
	"taskgate/shim/dialect"
)

const (
	// mostTold is how many tasks of a session its client is told of. Of more than
	// that it hears when it asks, as it has to be ready to anyway (L34).
	mostTold = 100
	// tellPause is the time in which new tasks are gathered before they are
	// followed together with the others, and tellCheck how often it is seen
	// without a word whether there are any.
	tellPause = time.Second
	tellCheck = 30 * time.Second
)

// tasksWord tells the replica that has a session's stream of new tasks.
const tasksWord = "tasks"

// withTasks returns the state with more tasks to tell of, in place of the oldest if
// there are too many, and without those of which all has been told. The list of the
// old state is not changed: others may read it.
func (st sessionState) withTasks(made, told []shim.ID) sessionState {
	ids := append(slices.Clone(st.Tasks), made...)
	ids = slices.DeleteFunc(ids, func(id shim.ID) bool { return slices.Contains(told, id) })
	st.Tasks = ids[max(0, len(ids)-mostTold):]
	return st
}

// taskNotes gathers what the state of a session has still to learn of its tasks, so
// that many calls at once do not contend for it: there is one write at a time, and
// no call waits for it.
type taskNotes struct {
	mu         sync.Mutex
	made, told []shim.ID
	writing    bool
}

// note adds to what the state of the session has to learn: tasks that were made in
// it, and tasks of whose end its client has been told. The client has its tasks in
// any case, so what cannot be written is let go.
func (s *session) note(made, told []shim.ID) {
	n := &s.notes
	n.mu.Lock()
	defer n.mu.Unlock()
	n.made = append(n.made, made...)
	n.told = append(n.told, told...)
	if !n.writing {
		n.writing = s.table.outlive(s.writeNotes)
	}
}

// take returns what is to be written, and no longer after the last of it.
func (n *taskNotes) take() (made, told []shim.ID, more bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	made, told = n.made, n.told
	n.made, n.told = nil, nil
	n.writing = len(made)+len(told) > 0
	return made, told, n.writing
}

// writeNotes writes until there is nothing left to, and wakes whoever holds the
// session's stream.
func (s *session) writeNotes() {
	for {
		made, told, more := s.notes.take()
		if !more {
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), endTimeout)
		err := s.update(ctx, func(st sessionState) sessionState { return st.withTasks(made, told) })
		switch {
		case err != nil || len(made) == 0:
		case s.attached():
			s.news.ring()
		default:
			_ = s.table.store.Signal(ctx, s.id, tasksWord) // it looks by itself, too
		}
		cancel()
	}
}

// bell wakes one listener; rings that nobody has heard yet are one.
type bell chan struct{}

func (b bell) ring() {
	select {
	case b <- struct{}{}:
	default:
	}
}

// teller sends notifications/tasks/status for the tasks of a session to its GET
// stream (L34): their state when the stream opens, and after every change until
// the client has been told that they have ended. Of changes that come faster than
// the client reads, only the newest is sent.
type teller struct {
	e    *endpoint
	s    *session
	p    shim.Principal
	told map[shim.ID]string // what a client last heard of each
	asks *courier
	// progress is what the client last heard of it, by task.
	progress map[shim.ID]string
	partials *partials // nil where the client takes none
}

// tellTasks tells the session's stream of its tasks, and asks what they ask, until
// the function it returns is called. Sessions that cannot make tasks have none. end ends
// the stream.
func (e *endpoint) tellTasks(ctx context.Context, g *standing, p shim.Principal, end func()) (stop func()) {
	s := g.s
	if !e.offersTasks(s.current().Version) {
		return func() {}
	}
	t := &teller{e: e, s: s, p: p, told: make(map[shim.ID]string), progress: make(map[shim.ID]string)}
	if g.count != nil {
		t.partials = &partials{from: g.count.from, room: make(chan struct{}, mostUnsent), lost: end}
	}
	ctx, cancel := context.WithCancel(ctx)
	t.asks = newCourier(ctx, e, s, s.principal(p), standingStream, s.line())
	t.asks.past = g.past
	var running sync.WaitGroup
	running.Go(func() { t.run(ctx) })
	return func() {
		cancel()
		running.Wait()
		t.asks.work.Wait()
		s.out.forgetRequests()
		if t.partials != nil {
			s.out.forgetTasks()
		}
	}
}

// line is the GET stream of a session as a courier uses it.
func (s *session) line() line {
	return line{
		ask: func(about string, m []byte) error {
			s.out.putRequest(about, m)
			return nil
		},
		over: s.out.putOver,
	}
}

// run follows the tasks that the session has, and begins anew with each time that
// it has more.
func (t *teller) run(ctx context.Context) {
	if t.partials != nil {
		t.runEach(ctx)
		return
	}
	for {
		ids := t.s.current().Tasks
		following, cancel := context.WithCancel(ctx)
		var running sync.WaitGroup
		running.Go(func() {
			// It ends with the last task, or when there are more.
			_ = t.e.shim.Follow(following, t.p, t.e.name, ids, func(task shim.Task) error {
				t.asks.look(following, task)
				return t.tell(task)
			})
		})
		more := t.more(ctx, ids)
		cancel()
		running.Wait()
		if !more || !rest(ctx, tellPause) {
			return
		}
	}
}

// more waits until the session has tasks besides those that are followed. A word
// of another replica may be lost, so the state is read again from time to time.
func (t *teller) more(ctx context.Context, followed []shim.ID) bool {
	check := time.NewTicker(tellCheck)
	defer check.Stop()
	for {
		select {
		case <-ctx.Done():
			return false
		case <-t.s.news:
		case <-check.C:
		}
		st, err := t.s.load(ctx)
		if err == nil && slices.ContainsFunc(st.Tasks, func(id shim.ID) bool { return !slices.Contains(followed, id) }) {
			return true
		}
	}
}

// tell sends the state of a task, unless there is nothing in it that the client
// does not know: how the task began it was told in the answer to its call.
func (t *teller) tell(task shim.Task) error {
	t.tellProgress(task)
	params := dialect.Legacy.Got(task)
	status, _ := jsonrpc.GetString(params, "status")
	says := status + " " + task.StatusMessage
	before, known := t.told[task.ID]
	t.told[task.ID] = says
	if before == says || !known && says == string(shim.Working)+" " {
		return nil
	}
	state := waiting{text: jsonrpc.AppendNotification(nil, mcp.NotifyTaskStatus, params), about: string(task.ID)}
	over := func() { t.s.note(nil, []shim.ID{task.ID}) }
	state.numbered = t.partials != nil // it comes after partial results, and they go out through the log
	if state.numbered && task.Status.Final() {
		state.gone = over // if it does not go out, nor may have what comes before it
	}
	t.s.out.putState(state)
	if task.Status.Final() {
		delete(t.told, task.ID)
		delete(t.progress, task.ID)
		if t.partials == nil {
			over()
		}
	}
	return nil
}

// tellProgress sends how far a task has got, under the token of the call that made it,
// which is good until the task ends (L35).
func (t *teller) tellProgress(task shim.Task) {
	p := task.Progress
	if p.Token == nil || p.Params == nil || task.Status.Final() || t.progress[task.ID] == string(p.Params) {
		return
	}
	t.progress[task.ID] = string(p.Params)
	params := unrelated(with(p.Params, p.Token, mcp.MetaProgressToken))
	t.s.out.putLatest("progress "+string(task.ID), jsonrpc.AppendNotification(nil, mcp.NotifyProgress, params))
}

// rest pauses, and reports whether ctx lasted.
func rest(ctx context.Context, d time.Duration) bool {
	pause := time.NewTimer(d)
	defer pause.Stop()
	select {
	case <-pause.C:
		return true
	case <-ctx.Done():
		return false
	}
}
