package gateway

import (
	"container/list"
	"context"
	"slices"
	"sync"
	"time"

	"taskgate/shim"
)

// LocalSessions keeps sessions in this process: they do not outlive it, and no
// other replica sees them.
type LocalSessions struct {
	memoryLogs

	max  int
	idle time.Duration

	mu   sync.Mutex
	byID map[string]*list.Element
	used list.List // of *localSession, the one idle for longest first
	// busy and ended are those of Run; before it runs, no session is busy.
	busy  func(string) bool
	ended func(string)
}

type localSession struct {
	id    string
	rev   int64
	state []byte
	used  time.Time
}

var _ Sessions = (*LocalSessions)(nil)

// NewLocalSessions keeps at most max sessions, each until it has been idle for
// the given time. When it is full, a new session takes the place of the one that
// has been idle for longest, and is refused only if none is idle.
func NewLocalSessions(max int, idle time.Duration) *LocalSessions {
	return &LocalSessions{
		memoryLogs: memoryLogs{sessions: make(map[string]*memoryLog)},

		max:   max,
		idle:  idle,
		byID:  make(map[string]*list.Element),
		busy:  func(string) bool { return false },
		ended: func(string) {},
	}
}

// Get implements Sessions.
func (l *LocalSessions) Get(_ context.Context, id string) ([]byte, int64, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.touch(id)
	if s == nil {
		return nil, 0, nil
	}
	return s.state, s.rev, nil
}

// Put implements Sessions.
func (l *LocalSessions) Put(_ context.Context, id string, rev int64, state []byte) (int64, error) {
	if rev == 0 {
		return l.create(id, state)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.touch(id)
	if s == nil || s.rev != rev {
		return 0, nil
	}
	s.rev++
	s.state = state
	return s.rev, nil
}

// Delete implements Sessions.
func (l *LocalSessions) Delete(_ context.Context, id string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e, ok := l.byID[id]; ok {
		l.remove(e)
	}
	return nil
}

// touch returns a session and makes it the one used last.
func (l *LocalSessions) touch(id string) *localSession {
	e, ok := l.byID[id]
	if !ok {
		return nil
	}
	s := e.Value.(*localSession)
	s.used = time.Now()
	l.used.MoveToBack(e)
	return s
}

func (l *LocalSessions) remove(e *list.Element) string {
	s := l.used.Remove(e).(*localSession)
	delete(l.byID, s.id)
	l.forget(s.id)
	return s.id
}

func (l *LocalSessions) create(id string, state []byte) (int64, error) {
	victim, rev, err := l.insert(id, state)
	if victim != "" {
		l.onEnded()(victim)
	}
	return rev, err
}

// insert adds a session, in place of an idle one if there is no more room.
func (l *LocalSessions) insert(id string, state []byte) (victim string, rev int64, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, ok := l.byID[id]; ok {
		return "", 0, nil
	}
	if len(l.byID) >= l.max {
		e := l.oldestIdle()
		if e == nil {
			return "", 0, &shim.BusyError{Limit: "sessions", RetryAfter: time.Second}
		}
		victim = l.remove(e)
	}
	l.byID[id] = l.used.PushBack(&localSession{id: id, rev: 1, state: state, used: time.Now()})
	return victim, 1, nil
}

// oldestIdle finds the session that has been idle for longest. A busy one is in
// use now, and goes to the end of the list, so that it is not asked about again
// and again.
func (l *LocalSessions) oldestIdle() *list.Element {
	for range l.used.Len() {
		e := l.used.Front()
		s := e.Value.(*localSession)
		if !l.busy(s.id) {
			return e
		}
		l.touch(s.id)
	}
	return nil
}

// Signal implements Sessions. There is no other replica to hear it.
func (l *LocalSessions) Signal(context.Context, string, string) error { return nil }

// Run implements Sessions: one timer, set to when the session that has been idle
// for longest is due.
func (l *LocalSessions) Run(ctx context.Context, busy func(string) bool, ended func(string), _ func(string, string)) error {
	l.mu.Lock()
	l.busy, l.ended = busy, ended
	l.mu.Unlock()
	t := time.NewTimer(l.idle)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
			gone, next := l.expire(time.Now())
			for _, id := range gone {
				ended(id)
			}
			t.Reset(next)
		}
	}
}

// expire takes out the sessions whose time is over and says when to look again.
func (l *LocalSessions) expire(now time.Time) (gone []string, next time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for e := l.used.Front(); e != nil; e = l.used.Front() {
		s := e.Value.(*localSession)
		if left := s.used.Add(l.idle).Sub(now); left > 0 {
			return gone, left
		}
		if l.busy(s.id) {
			l.touch(s.id)
			continue
		}
		gone = append(gone, l.remove(e))
	}
	return slices.Clip(gone), l.idle
}

func (l *LocalSessions) onEnded() func(string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ended
}
