package upstream

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"time"

	"taskgate/internal/jsonrpc"
)

// The replica that holds the GET stream of a session need not be the one that runs the
// call which a question there belongs to. So it puts the question up in the store, and
// the first who takes it from there has it: a replica that runs a newer call of the
// session, or after a moment the one that heard it. Whoever has it posts the answer;
// all speak in the same session (design.md 0.16).

// Offers is where replicas hand such questions to each other. A question is known by a
// ref, which is hexadecimal. It speaks of standard types only, so that a store can
// implement it that does not know this package.
type Offers interface {
	// Offer puts a question up, for as long as keep, and tells all who watch to look. A
	// repeat tells them again. It reports false once nobody need look any more.
	Offer(ctx context.Context, ref string, content []byte, keep time.Duration) (open bool, err error)

	// Look returns what was offered, nil if it was taken, withdrawn or never there, and
	// whether it was withdrawn.
	Look(ctx context.Context, ref string) (content []byte, withdrawn bool, err error)

	// Take reports whether the question is by's, who may ask that again: the first who
	// takes it has it, offered or not, unless it was withdrawn. That is remembered for
	// keep.
	Take(ctx context.Context, ref, by string, keep time.Duration) (bool, error)

	// Withdraw says that the server no longer waits for an answer, and has whoever took
	// the question look. It is no error if it was never offered.
	Withdraw(ctx context.Context, ref string) error

	// Watch calls on for each question that there is a reason to look at, until ctx
	// ends. One may be missed.
	Watch(ctx context.Context, on func(ref string))
}

const (
	// offerFor is how long a question waits to be taken that belongs to no call here,
	// and offerAgain how often replicas are told of it meanwhile: one may miss a word.
	offerFor   = 2 * time.Second
	offerAgain = 250 * time.Millisecond
	// namedFirst is how long a question that names a task is left to the replica which
	// runs the call with that task, by those that run others.
	namedFirst = 100 * time.Millisecond
	// offerKept is how long it is remembered who has a question, and how long a store
	// that is away is asked: as long as questions wait for their answer by default.
	offerKept = 10 * time.Minute
)

// errNotTaken: a question was not to be had.
var errNotTaken = errors.New("the store did not say in time whose the question is")

// stray is a question that may belong to another replica's call, as that is told of it.
type stray struct {
	Session string          `json:"session"` // the upstream session's id
	ID      json.RawMessage `json:"id"`      // as the server spelt it
	Method  string          `json:"method"`
	Params  json.RawMessage `json:"params,omitempty"`
	// Age is how long the newest call runs that it could belong to where it was heard,
	// in nanoseconds: it is for younger ones. 0 says that there is none.
	Age time.Duration `json:"age,omitempty"`
}

func (o stray) encode() []byte {
	b, _ := json.Marshal(o) // raw members come from a parsed message: cannot fail
	return b
}

// sessionRef begins the refs of the questions in a session. Ids of sessions are the
// server's and of any form, and are not to be seen on channels.
func sessionRef(session string) string {
	sum := sha256.Sum256([]byte(session))
	return hex.EncodeToString(sum[:])[:sessionRefLen]
}

const sessionRefLen = 16

// offerRef is the ref of one question.
func offerRef(session string, id jsonrpc.ID) string {
	sum := sha256.Sum256([]byte(id.Key()))
	return sessionRef(session) + hex.EncodeToString(sum[:])[:sessionRefLen]
}

// attended are the calls in flight that can be asked in sessions which other replicas
// may use as well, by sessionRef.
type attended struct {
	mu   sync.Mutex
	m    map[string][]*exchange
	once sync.Once
}

// enter has a call be offered questions until the function that it returns is called.
func (h *HTTP) enter(ctx context.Context, x *exchange) func() {
	if h.cfg.Offers == nil || x.to.session == "" || !x.ses.shared && !x.resumed {
		return func() {}
	}
	a, ref := &h.attended, sessionRef(x.to.session)
	a.mu.Lock()
	if a.m == nil {
		a.m = make(map[string][]*exchange)
	}
	a.m[ref] = append(a.m[ref], x)
	a.mu.Unlock()
	h.watchOffers(ctx)
	return func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.m[ref] = slices.DeleteFunc(slices.Clone(a.m[ref]), func(other *exchange) bool { return other == x })
		if len(a.m[ref]) == 0 {
			delete(a.m, ref)
		}
	}
}

// watchOffers has this replica hear of questions from now on.
func (h *HTTP) watchOffers(ctx context.Context) {
	if h.cfg.Offers == nil {
		return
	}
	h.attended.once.Do(func() {
		h.spawn(ctx, func(ctx context.Context) { h.cfg.Offers.Watch(ctx, func(ref string) { h.offered(ctx, ref) }) })
	})
}

// newest are the calls that a question may belong to, the newest first.
func (a *attended) newest(ref string) []*exchange {
	a.mu.Lock()
	defer a.mu.Unlock()
	calls := slices.Clone(a.m[ref[:min(sessionRefLen, len(ref))]])
	slices.Reverse(calls)
	return calls
}

// offered looks at a question that another replica has heard.
func (h *HTTP) offered(ctx context.Context, ref string) {
	calls := h.attended.newest(ref)
	if len(calls) == 0 && !h.alone.has(ref) {
		return
	}
	h.spawn(ctx, func(ctx context.Context) {
		b, withdrawn, err := h.cfg.Offers.Look(ctx, ref)
		var o stray
		switch {
		case err != nil:
			h.log.Debug("a question of another replica was not read", "err", err)
		case withdrawn:
			h.alone.withdraw(ref)
			for _, x := range calls {
				x.aside.cancelled(func(p pending) bool { return p.Offer == ref })
			}
		case b == nil || json.Unmarshal(b, &o) != nil:
		case ofTask(calls, o.Params) != nil:
			o.Age = 0 // it is this one's, however many are newer
			o.reach(ref, []*exchange{ofTask(calls, o.Params)})
		case related(o.Params) == "" || pause(ctx, namedFirst) == nil:
			o.reach(ref, calls)
		}
	})
}

// reach hands a question to the newest call that it may belong to.
func (o stray) reach(ref string, calls []*exchange) {
	id, err := jsonrpc.ParseID(o.ID)
	if err != nil {
		return
	}
	for _, x := range calls {
		if _, ok := may(x.caller, o.Method, o.Params); !ok || x.to.session != o.Session {
			continue
		}
		if x.tooMuch(jsonrpc.Message{Params: o.Params}) != "" {
			continue // an older one may ask it, or the replica that heard it refuses it
		}
		if o.Age > 0 && time.Since(x.begun) >= o.Age || !x.ses.claim(id) {
			return // it is not younger, or knows the question
		}
		p := x.question(jsonrpc.Message{ID: id, Method: o.Method, Params: o.Params})
		p.Aside, p.Offer = true, ref
		if x.aside.accept(p) {
			return
		}
	}
}

// accept takes a question over from the replica that heard it, if nobody is faster. It
// is in the checkpoint before it is taken, so that it is not lost with this replica.
func (a *asides) accept(p pending) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.over {
		return false
	}
	a.work.Go(func() {
		a.x.amend(func(c *checkpoint) { c.open([]pending{p}) })
		a.x.save(a.ctx)
		switch mine, err := a.x.h.takeOffer(a.ctx, p.Offer, p.Key); {
		case err != nil && detached(a.ctx): // for whoever goes on with the call
		case err == nil && mine && (a.take(p) || detached(a.ctx)):
		case err == nil && !mine:
			a.x.amend(func(c *checkpoint) { c.close([]pending{p}) })
		default:
			a.x.amend(func(c *checkpoint) { c.close([]pending{p}) })
			a.post([]pending{p}, nil, errWithdrawn)
		}
	})
	return true
}

// own are those of the questions that no other replica has taken. An error says that
// this is not known of all.
func (a *asides) own(ctx context.Context, asked []pending) (mine []pending, err error) {
	for _, p := range asked {
		switch ok, err := a.owns(ctx, p); {
		case err != nil:
			return asked, err
		case ok:
			mine = append(mine, p)
		default:
			a.x.amend(func(c *checkpoint) { c.close([]pending{p}) })
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.asked = mine
	return mine, nil
}

// owns reports whether a question is this call's, and no other replica's.
func (a *asides) owns(ctx context.Context, p pending) (bool, error) {
	if p.Offer == "" {
		return true, nil
	}
	return a.x.h.takeOffer(ctx, p.Offer, p.Key)
}

// takeOffer is Offers.Take, again while the store is away. The error is the cause of
// ctx, or that it was away for too long.
func (h *HTTP) takeOffer(ctx context.Context, ref, by string) (bool, error) {
	if h.cfg.Offers == nil { // there is nobody else
		return true, nil
	}
	ctx, stop := context.WithTimeoutCause(ctx, offerKept, errNotTaken)
	defer stop()
	for tries := 1; ; tries++ {
		mine, err := h.cfg.Offers.Take(ctx, ref, by, offerKept)
		if err == nil {
			return mine, nil
		}
		if err := pause(ctx, min(backoff(tries), 5*time.Second)); err != nil {
			return false, err
		}
	}
}
