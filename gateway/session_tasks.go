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
	// followed together with the others.
	tellPause = time.Second
)

// tasksWord tells the replica that has a session's stream of new tasks.
const tasksWord = "tasks"

// withTask returns the state with one more task to tell of, in place of the oldest
// if there are too many. The list of the old state is not changed: others may read
// it.
func (st sessionState) withTask(id shim.ID) sessionState {
	st.Tasks = append(slices.Clone(st.Tasks), id)
	st.Tasks = st.Tasks[max(0, len(st.Tasks)-mostTold):]
	return st
}

// withoutTask returns the state without a task.
func (st sessionState) withoutTask(id shim.ID) sessionState {
	st.Tasks = slices.DeleteFunc(slices.Clone(st.Tasks), func(other shim.ID) bool { return other == id })
	return st
}

// noteTask has the session's client told of a task it made, on whichever replica
// its stream is. The client has the task in any case, so what fails here is only
// logged.
func (e *endpoint) noteTask(ctx context.Context, s *session, id shim.ID) {
	ctx, cancel := context.WithTimeout(ctx, endTimeout)
	defer cancel()
	err := s.update(ctx, func(st sessionState) sessionState { return st.withTask(id) })
	switch {
	case err != nil:
	case s.attached():
		s.news.ring()
	default:
		err = s.table.store.Signal(ctx, s.id, tasksWord)
	}
	if err != nil {
		e.log.DebugContext(ctx, "a client will not be told of its task", "task", id, "err", err)
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
}

// tellTasks tells the session's stream of its tasks until the function it returns
// is called. Sessions that cannot make tasks have none.
func (e *endpoint) tellTasks(ctx context.Context, s *session, p shim.Principal) (stop func()) {
	if !e.offersTasks(s.current().Version) {
		return func() {}
	}
	t := &teller{e: e, s: s, p: p, told: make(map[shim.ID]string)}
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { t.run(ctx) })
	return func() {
		cancel()
		running.Wait()
	}
}

// run follows the tasks that the session has, and begins anew with each time that
// it has more.
func (t *teller) run(ctx context.Context) {
	for {
		ids := t.s.current().Tasks
		following, cancel := context.WithCancel(ctx)
		var running sync.WaitGroup
		running.Go(func() {
			// It ends with the last task, or when there are more.
			_ = t.e.shim.Follow(following, t.p, t.e.name, ids, t.tell)
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
	check := time.NewTicker(t.e.gateway.config.KeepAlive)
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
	params := dialect.Legacy.Got(task)
	status, _ := jsonrpc.GetString(params, "status")
	state := status + " " + task.StatusMessage
	before, known := t.told[task.ID]
	t.told[task.ID] = state
	if before == state || !known && state == string(shim.Working)+" " {
		return nil
	}
	t.s.out.putLatest(string(task.ID), jsonrpc.AppendNotification(nil, mcp.NotifyTaskStatus, params))
	if task.Status.Final() {
		t.done(task.ID)
	}
	return nil
}

// done notes that the client has been told of the end of a task. Where that fails
// it is told again by its next stream.
func (t *teller) done(id shim.ID) {
	delete(t.told, id)
	ctx, cancel := context.WithTimeout(context.Background(), endTimeout)
	defer cancel()
	_ = t.s.update(ctx, func(st sessionState) sessionState { return st.withoutTask(id) })
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
