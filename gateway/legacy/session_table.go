package legacy

import (
	"context"
	"crypto/rand"
	"errors"
	"maps"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"taskgate/internal/patience"
	"taskgate/internal/work"
	"taskgate/shim"
)

// errNoSession says that the session is unknown, or another caller's (X6, Z7).
var errNoSession = errors.New("unknown session")

// endTimeout bounds telling an upstream that a session has ended.
const endTimeout = 5 * time.Second

// Table holds the live parts of client sessions on this replica: calls in flight, streams, and listening
// upstream. The store has everything that outlives these, or that other replicas need.
type Table struct {
	store Sessions
	// storeTimeout bounds each wait for the store.
	storeTimeout time.Duration
	// ended is called for each session that is over, wherever it ended.
	ended func(context.Context, Ended)
	// name tells this replica from the others in the notes that they leave each other.
	name string
	ctx  context.Context // ends when the listening stops
	stop context.CancelFunc

	ending work.Turn // of endForgotten

	mu   sync.Mutex // stop is called under it
	live map[string]*session
	logs map[string]*answerStream // of the streams that are written here, by name
	late int                      // bytes of messages that wait for the store, to end logs with
	most int                      // of them; 0 is any number
	// states counts the bytes of large states of sessions that were made or changed here, and large has those of each.
	states shim.Bound
	large  map[string]largeState
	work   work.Group // goroutines that outlive a request
}

// Ended is a session that is over. Only the replica that made it says since when, so that it is measured once.
type Ended struct {
	ID                string
	Upstream, Version string    // "" if unknown
	Since             time.Time // when it was made; zero elsewhere
}

// NewTable makes a table over a store, and waits up to storeTimeout for that. ended is called for each session
// that is over; twice, if two ways find that at once.
func NewTable(store Sessions, storeTimeout time.Duration, ended func(context.Context, Ended)) *Table {
	t := &Table{store: store, storeTimeout: storeTimeout, ended: ended, name: rand.Text(), ending: work.NewTurn(), live: make(map[string]*session), logs: make(map[string]*answerStream), large: make(map[string]largeState)}
	t.states.Key, t.states.All, t.states.Own = "max_sessions", "bytes of sessions", "bytes of sessions of this caller"
	t.ctx, t.stop = context.WithCancel(context.Background())
	return t
}

// Limit bounds the bytes of messages that wait for the store, to end streams with, and those of the large states of
// sessions; 0 is any number. Those without an owner have half of the latter together, if halved.
func (t *Table) Limit(ends, states int, halved bool) {
	t.mu.Lock()
	t.most = ends
	t.mu.Unlock()
	t.states.Limit(states, states, halved) // an owner has half
}

// ordinaryState is how many bytes of the state of a session are in the bound of sessions: others have a bound of their
// own.
const ordinaryState = 4 << 10

// largeState is how many bytes more than an ordinary one a state has, and to whose share they count.
type largeState struct {
	share shim.Share
	bytes int
}

// countState counts the bytes of the state of a session, or refuses them with a *shim.BusyError.
func (t *Table) countState(id string, share shim.Share, size int) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	n, was := max(0, size-ordinaryState), t.large[id]
	if was.bytes > 0 {
		share = was.share
	}
	if n <= was.bytes {
		t.states.CountMany(share, n-was.bytes)
	} else if err := t.states.EnterMany(share, n-was.bytes); err != nil {
		return err
	}
	if t.large[id] = (largeState{share, n}); n == 0 {
		delete(t.large, id)
	}
	return nil
}

// withPatience bounds an operation at the store: by the patience of its request, or by storeTimeout if it has
// none.
func (t *Table) withPatience(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(patience.Or(ctx, t.storeTimeout), t.storeTimeout)
}

// Run ends sessions that have been idle for too long, until ctx ends.
func (t *Table) Run(ctx context.Context) error {
	return t.store.Run(patience.With(ctx, t.storeTimeout), t.isBusy, func(id string, state []byte) {
		st, _ := decodeSession(state) // without a state, it counts as another replica's
		t.outlive(func() { t.finishSession(context.WithoutCancel(ctx), id, st) })
	}, t.takeSignal)
}

// cancelSignal begins the signal that cancels a request on any replica. The reason follows, escaped, and the key of the
// request.
const cancelSignal = "cancel "

// takeSignal takes a signal that another replica has sent for a session.
func (t *Table) takeSignal(id, text, token string, at time.Time) {
	if stream, ok := strings.CutPrefix(text, writesSignal+t.name+" "); ok {
		t.outlive(func() { t.endForgotten(id, stream) })
		return
	}
	t.mu.Lock()
	s := t.live[id]
	t.mu.Unlock()
	if s == nil {
		return
	}
	if text, ok := strings.CutPrefix(text, cancelSignal); ok {
		reason, key, _ := strings.Cut(text, " ")
		reason, _ = url.QueryUnescape(reason) // a replica has escaped it
		s.abortKey(key, at, token, reason)
	}
	if ask, ok := strings.CutPrefix(text, streamSignal); ok {
		t.outlive(func() { s.sayHeld(ask) })
	}
}

// createSession stores a new session, which counts towards a share, and opens it.
func (t *Table) createSession(ctx context.Context, share shim.Share, st sessionState) (*session, error) {
	id := uuid.NewString() // visible ASCII with 122 random bits (X6, Z7)
	state := st.encode()
	if err := t.countState(id, share, len(state)); err != nil {
		return nil, err
	}
	s := t.pinSession(id)
	rev, err := t.store.Make(ctx, id, share.Owner, share.Address, state)
	if err == nil && rev == 0 { // 122 random bits twice: somebody's id generator is broken
		err = errors.New("session id exists")
	}
	if err != nil {
		_ = t.countState(id, share, 0) // less is never refused
		s.endUse()
		return nil, err
	}
	s.noteWritten(0, rev, st)
	return s, nil
}

// findSession finds a session for one request, if may allows it. The session is in use until the caller ends
// its use.
func (t *Table) findSession(ctx context.Context, id string, may func(sessionState) bool) (*session, error) {
	s := t.pinSession(id)
	st, err := s.loadState(ctx)
	if err == nil && !may(st) {
		err = errNoSession
	}
	if err != nil {
		s.endUse()
		return nil, err
	}
	return s, nil
}

// pinSession finds or makes the live part of a session, and counts one more use.
func (t *Table) pinSession(id string) *session {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.live[id]
	if s == nil {
		s = newSession(t, id)
		t.live[id] = s
	}
	s.pins++
	return s
}

// forgetSession removes a live part that is unused and of no further use. The caller holds t.mu.
func (t *Table) forgetSession(s *session) {
	if s.pins == 0 && t.live[s.id] == s && !s.isWorthKeeping() {
		delete(t.live, s.id)
		s.cancel(nil)
	}
}

// Count is the number of sessions with a live part here.
func (t *Table) Count() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.live)
}

// Owners returns how many sessions with a live part here each owner has; "" for all without one.
func (t *Table) Owners() map[string]int {
	t.mu.Lock()
	live := slices.Collect(maps.Values(t.live))
	t.mu.Unlock()
	all := make(map[string]int)
	for _, s := range live {
		all[s.currentState().Owner]++
	}
	return all
}

// isBusy reports whether a request or a stream of the session is open here. Listening upstream for a client
// that may come back is left out.
func (t *Table) isBusy(id string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.live[id]
	return s != nil && s.pins > 0
}

// isAttached reports whether the GET stream of a session is open here.
func (t *Table) isAttached(id string) bool {
	t.mu.Lock()
	s := t.live[id]
	t.mu.Unlock()
	return s != nil && s.isAttached()
}

// endSession removes a session on behalf of its client.
func (t *Table) endSession(ctx context.Context, id string, st sessionState) error {
	if err := t.store.Delete(ctx, id); err != nil {
		return err
	}
	t.finishSession(ctx, id, st)
	return nil
}

// finishSession ends what this replica still does for a session that is over: it cancels its calls, ends its
// streams, and gives up its upstream session.
func (t *Table) finishSession(ctx context.Context, id string, st sessionState) {
	t.mu.Lock()
	s := t.live[id]
	delete(t.live, id)
	t.mu.Unlock()
	_ = t.countState(id, shim.Share{}, 0) // less is never refused
	if s != nil {
		s.cancel(shim.ErrCancelled)
		s.listen.endListening(nil)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
	defer cancel()
	over := Ended{ID: id, Upstream: st.Upstream, Version: st.Version}
	if st.Maker == t.name {
		over.Since = time.Unix(st.Since, 0)
	}
	t.ended(ctx, over)
}

// reapSession forgets a live part that may be of no further use.
func (t *Table) reapSession(s *session) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.forgetSession(s)
}

// outlive runs something that may take longer than its request. Once the table is closed, it returns false
// instead.
func (t *Table) outlive(f func()) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.ctx.Err() == nil && t.work.Go(f)
}

// Close stops listening upstream for all sessions, and waits until ctx ends for the goroutines that outlive a
// request. Sessions and calls in flight go on.
func (t *Table) Close(ctx context.Context) error {
	t.mu.Lock()
	t.stop()
	for _, s := range t.live {
		s.listen.endListening(nil)
	}
	t.mu.Unlock()
	return t.work.Wait(ctx)
}
