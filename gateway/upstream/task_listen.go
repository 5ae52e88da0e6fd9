package upstream

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"time"

	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/internal/work"
	"taskgate/shim"
)

// This file listens to the tasks that a modern server has made of calls (T43): one
// subscriptions/listen for all tasks of a session. What is heard only says that a task is to be
// looked at, so whoever follows the task reads it from one source, in one order (task_poll.go).
// Nobody relies on hearing anything: without a subscription the task is polled as often as the
// server wants.

const (
	// listenAfter is how long the tasks of a session gather before they are listened to. A task
	// that ends sooner is not.
	listenAfter = 200 * time.Millisecond
	// listenEvery is the least time between two subscriptions of one session. The tasks of a
	// subscription cannot be changed: a new one takes its place.
	listenEvery = time.Second
	// listenSteady is how long a subscription lasts at least at a server that keeps them.
	listenSteady = 10 * time.Second
	// listenMost is how many tasks a subscription has. Others are polled.
	listenMost = 1000
	// listenAgain is how long a server is left alone that lets nobody listen to its tasks.
	listenAgain = 10 * time.Minute
)

// taskListeners are the subscriptions to tasks at a modern server, one for each session. The
// client owns them. mu guards what follows it, and the tasks of each listener.
type taskListeners struct {
	wire *wire
	work *work.Background

	mu   sync.Mutex
	of   map[listenKey]*taskListener
	deaf time.Time // until then the server is not asked
}

// listenKey names who shares a subscription: those whose requests go to one process of a
// server over stdio (CallerOf), and carry the same headers.
type listenKey struct{ principal, session, mark, version string }

// taskListener is the subscription of one session, through all its streams.
type taskListener struct {
	all    *taskListeners
	key    listenKey
	change chan struct{} // a signal: there are more tasks, or none

	tasks  map[string]*taskNews // by the server's ids
	stream *taskStream          // the one that the server has confirmed; nil for none
}

// taskNews is what whoever follows a task hears of it. That of a nil taskNews is nothing.
type taskNews struct {
	of      *taskListener
	id      string
	told    chan struct{} // a signal: the task is to be looked at
	covered bool          // the server has confirmed that it tells of the task; all.mu guards it
}

// join has a task listened to. It returns nil where that is of no use.
func (ls *taskListeners) join(ctx context.Context, s shim.Session, version, id string) *taskNews {
	if ls == nil {
		return nil
	}
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if time.Now().Before(ls.deaf) {
		return nil
	}
	k := listenKey{s.Principal, s.Key, s.Mark, version}
	l := ls.of[k]
	if l == nil {
		l = &taskListener{all: ls, key: k, change: make(chan struct{}, 1), tasks: make(map[string]*taskNews)}
		if !ls.work.Go(ctx, l.run) {
			return nil
		}
		if ls.of == nil {
			ls.of = make(map[listenKey]*taskListener)
		}
		ls.of[k] = l
	}
	n := &taskNews{of: l, id: id, told: make(chan struct{}, 1)}
	if old := l.tasks[id]; old != nil {
		old.covered = false // of a run that is about to end
	}
	l.tasks[id] = n
	if len(l.tasks) <= listenMost {
		work.Signal(l.change)
	}
	return n
}

// leave ends what join has begun.
func (n *taskNews) leave() {
	if n == nil {
		return
	}
	n.of.all.mu.Lock()
	defer n.of.all.mu.Unlock()
	if n.of.tasks[n.id] == n {
		delete(n.of.tasks, n.id)
	}
	if len(n.of.tasks) == 0 {
		work.Signal(n.of.change)
	}
}

// nudge has the task looked at soon.
func (n *taskNews) nudge() {
	if n != nil {
		work.Signal(n.told)
	}
}

// heard reports whether the server has confirmed that it tells of the task.
func (n *taskNews) heard() bool {
	if n == nil {
		return false
	}
	n.of.all.mu.Lock()
	defer n.of.all.mu.Unlock()
	return n.covered
}

// rest waits for d, or until the task is to be looked at, and for pollLeast in any case. told
// says that the task is to be looked at. An error is why ctx has ended.
func (n *taskNews) rest(ctx context.Context, d time.Duration) (told bool, err error) {
	if n == nil || d <= pollLeast {
		return false, work.Pause(ctx, d)
	}
	if err := work.Pause(ctx, pollLeast); err != nil {
		return false, err
	}
	timer := time.NewTimer(d - pollLeast)
	defer timer.Stop()
	select {
	case <-n.told:
		return true, nil
	case <-timer.C:
		return false, nil
	case <-ctx.Done():
		return false, context.Cause(ctx)
	}
}

// run listens as long as there are tasks.
func (l *taskListener) run(ctx context.Context) {
	var current *taskStream
	var began time.Time
	defer func() {
		current.close()
		l.end()
	}()
	wait, tries := listenAfter, 0
	for work.Pause(ctx, wait) == nil {
		ids := l.ids()
		if ids == nil {
			return
		}
		next := l.open(ctx, ids)
		err := next.await(ctx)
		current.close()
		if current = next; err != nil {
			current.close()
			if ended(ctx) == nil && !passing(err) {
				l.giveUp(err)
				return
			}
			current, tries = nil, tries+1
			wait = backoff(tries)
			continue
		}
		began, wait = time.Now(), listenEvery
		select {
		case <-l.change:
			if l.idle() {
				current.close()
			}
		case <-current.done:
			if time.Since(began) >= listenSteady {
				tries = 0
			}
			tries++
			wait = max(wait, backoff(tries))
		case <-ctx.Done():
			return
		}
	}
}

// ids are the tasks to listen to. If there are none, the listener is over: the next task gets
// another one.
func (l *taskListener) ids() (ids []string) {
	l.all.mu.Lock()
	defer l.all.mu.Unlock()
	select {
	case <-l.change:
	default:
	}
	for id := range l.tasks {
		if len(ids) == listenMost {
			break
		}
		ids = append(ids, id)
	}
	if ids == nil && l.all.of[l.key] == l {
		delete(l.all.of, l.key)
	}
	return ids
}

// idle reports that there are no tasks at present.
func (l *taskListener) idle() bool {
	l.all.mu.Lock()
	defer l.all.mu.Unlock()
	return len(l.tasks) == 0
}

// giveUp ends the listener of a server that lets nobody listen to its tasks. They are polled,
// and so are those of the next time.
func (l *taskListener) giveUp(why error) {
	l.all.wire.log.Debug("the tasks of the server are polled, since they cannot be listened to", "err", why)
	l.all.mu.Lock()
	defer l.all.mu.Unlock()
	l.all.deaf = time.Now().Add(listenAgain)
}

// end has the next task listened to by another listener.
func (l *taskListener) end() {
	l.all.mu.Lock()
	defer l.all.mu.Unlock()
	if l.all.of[l.key] == l {
		delete(l.all.of, l.key)
	}
}

// errUnheard: a server answers a subscription, and tells of no task.
var errUnheard = errors.New("the server does not tell of its tasks")

// taskStream is one subscriptions/listen. run owns it, and its goroutine.
type taskStream struct {
	l    *taskListener
	stop context.CancelFunc
	// confirmed is closed when the server has said of which tasks it tells, and done at the
	// end of the stream. err is why that came.
	confirmed, done chan struct{}
	err             error
}

// open begins to listen to tasks.
func (l *taskListener) open(ctx context.Context, ids []string) *taskStream {
	st := &taskStream{l: l, confirmed: make(chan struct{}), done: make(chan struct{})}
	ctx, st.stop = context.WithCancel(ctx)
	go func() {
		defer close(st.done)
		st.err = st.listen(ctx, ids)
		st.over()
	}()
	return st
}

// close ends the stream, and waits for that.
func (st *taskStream) close() {
	if st != nil {
		st.stop()
		<-st.done
	}
}

// await waits until the server has confirmed that it tells of some of the tasks. An error says
// why it does not.
func (st *taskStream) await(ctx context.Context) error {
	timer := time.NewTimer(st.l.all.wire.cfg.ProbeTimeout)
	defer timer.Stop()
	select {
	case <-st.confirmed:
		return nil
	case <-st.done:
		select {
		case <-st.confirmed:
			return nil
		default:
		}
		if st.err == nil {
			return errUnheard
		}
		return st.err
	case <-timer.C:
		return errUnheard
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// listen holds the stream until its end.
func (st *taskStream) listen(ctx context.Context, ids []string) error {
	params, _ := json.Marshal(map[string]any{"notifications": map[string]any{"taskIds": ids}})
	k := st.l.key
	// No client listens, so nothing is declared but the extension.
	r := shim.Request{Method: mcp.MethodListen, Params: params, Session: shim.Session{Principal: k.principal, Key: k.session, Mark: k.mark}}
	x := st.l.all.wire.modernExchange(r, discard{}, k.version)
	x.uncancelled, x.listens, x.unseen, x.outside = true, true, true, st
	m, err := x.run(ctx)
	if err == nil && m.Error != nil {
		err = m.Error
	}
	return err
}

// heard takes a notification of the stream.
func (st *taskStream) heard(n shim.Notification) {
	switch n.Method {
	case mcp.NotifyAcknowledged:
		granted, _ := jsonrpc.Get(n.Params, "notifications", "taskIds")
		st.confirm(granted)
	case mcp.NotifyTask:
		id, _ := jsonrpc.GetString(n.Params, "taskId")
		st.l.all.mu.Lock()
		news := st.l.tasks[id]
		st.l.all.mu.Unlock()
		news.nudge()
	}
}

// confirm takes the tasks that the server tells of from now on. This stream takes the place of
// the one before it. What was new in a task before that was not heard, so it is looked at.
func (st *taskStream) confirm(granted json.RawMessage) {
	covered := make(map[string]bool)
	for v := range jsonrpc.Elements(granted) {
		if id, ok := jsonrpc.String(v); ok {
			covered[id] = true
		}
	}
	if len(covered) == 0 {
		return // nor will there be anything to hear
	}
	st.l.all.mu.Lock()
	defer st.l.all.mu.Unlock()
	select {
	case <-st.confirmed:
		return
	default:
	}
	close(st.confirmed)
	st.l.stream = st
	for id, n := range st.l.tasks {
		if covered[id] && !n.covered {
			n.nudge()
		}
		n.covered = covered[id]
	}
}

// over has all tasks looked at, if none of their streams is left: what has happened meanwhile
// was not heard.
func (st *taskStream) over() {
	st.l.all.mu.Lock()
	defer st.l.all.mu.Unlock()
	if st.l.stream != st {
		return
	}
	st.l.stream = nil
	for _, n := range st.l.tasks {
		n.covered = false
		n.nudge()
	}
}
