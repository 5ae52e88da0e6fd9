package shim

import (
	"context"
	"errors"
	"time"
)

// RepeatMode says what becomes of a call whose client gives up waiting, and of the same call made again.
type RepeatMode string

// The modes.
const (
	RepeatAuto RepeatMode = "auto" // the next call of the client picks the call up, if it is the same one and comes soon
	RepeatJoin RepeatMode = "join" // any later call that is the same does, also after any end of a connection
	RepeatRun  RepeatMode = "run"  // the call is cancelled, and the next one runs
)

// ErrKept comes with the cause of the context of a client that has given up a call, if the call goes on.
var ErrKept = errors.New("the call is kept for a repeat")

// How long things last around repeats.
const (
	// LeastKept is how long a call must have run to be kept when its client gives up: a shorter one is cheap to repeat.
	LeastKept = 20 * time.Second
	// PickedUpWithin is how long after the giving up a repeat picks the call up under RepeatAuto.
	PickedUpWithin = time.Minute
)

// Repeat says how a call is known as the same one as an earlier call of its client, and when its client gives up. The
// zero value is for a client that cannot be told from others.
type Repeat struct {
	// Client names who may pick the call up, and Call what two calls must have in common, both as digests. They are
	// asked for only while the caller waits. nil for a client that cannot be told from others.
	Client, Call func() string
	// AfterSession names who may pick the call up if the session of the client ends while it waits: the same client in
	// another session of the same owner. nil for nobody.
	AfterSession func() string
	// Name is what the client calls itself, for operators; "" if it does not. nil where Client is.
	Name func() string
	// GaveUp reports whether a client that left with this cause of its context gave up, instead of cancelling the call.
	GaveUp func(cause error) bool
	// Gone is closed when the connection of a client has ended that may still resume its stream. Then the client may also
	// repeat the call. nil for a client that cannot. Stream names that stream.
	Gone   <-chan struct{}
	Stream string
	// ReadOnly reports whether the server says that the tool changes nothing. It may ask the server.
	ReadOnly func(ctx context.Context) bool
}

// IsPossible reports whether the client can be told from others.
func (r Repeat) IsPossible() bool { return r.Client != nil }

// OfEndedSession is the same call as one of an earlier session of the client.
func (r Repeat) OfEndedSession() Repeat {
	r.Client, r.AfterSession = r.AfterSession, nil
	return r
}

// IsSessionEnd reports whether the context of a call has ended because its session has.
func IsSessionEnd(cause error) bool {
	_, said := errors.AsType[*CancelledError](cause)
	return errors.Is(cause, ErrCancelled) && !said
}

// MessageKept is the status message of a call that is kept until then, for operators.
func MessageKept(until time.Time) string {
	return "given up by its client; kept until " + until.UTC().Format(time.TimeOnly) + " UTC"
}

// MessagePickedUp is that of a call that a repeat of this client has picked up.
func MessagePickedUp(client string) string {
	const message = "picked up by the same call made again"
	if client == "" {
		return message
	}
	return message + ", by " + client
}

// LingerState says who waits for a call that a repeat may pick up.
type LingerState string

// The states. None is that of a call without an entry.
const (
	LingerNone    LingerState = "none"
	LingerAwaited LingerState = "awaited" // its client waits
	LingerLeft    LingerState = "left"    // nobody waits: its client gave up
	LingerTaken   LingerState = "taken"   // a repeat waits for it
	LingerResumed LingerState = "resumed" // its client waits again, on the stream that it has resumed
)

// Lingering is the entry of a call that a repeat of its client may pick up, beside the record of the call.
type Lingering struct {
	ID     ID     `json:"-"`
	Client string `json:"client"`
	Call   string `json:"call"`
	// Stream is that of Repeat, "" for none.
	Stream string `json:"stream,omitempty"`
	// Join says that the limits of RepeatAuto do not count.
	Join bool `json:"join,omitempty"`
	// Linger is how long the call is kept after its client gave up.
	Linger time.Duration `json:"linger"`
}

// LingerNews is what a replica hears of the calls of a client that may be picked up. Left says that some call is Left,
// and Over that the client waits no more for the Call.
type LingerNews struct {
	Client, Call string
	Left, Over   bool
}

// Repeats knows which calls may be picked up by a repeat. It is the only place that decides who picks a call up, and
// when its time is over. Every method may return ErrUnavailable, and may be repeated.
type Repeats interface {
	// Note gives a call a state, if it is in one of these now, for at least as long as life, and returns the state that
	// it has then. Replicas hear of it by LingerNews in their Inbox. The time since which a call is Left counts from its
	// first note of that state.
	Note(ctx context.Context, e Lingering, state LingerState, from []LingerState, life time.Duration) (LingerState, error)
	// Take looks for a call of a client that is Left, and makes it Taken for as long as life: the oldest with this Call
	// that may be picked up. Under one op it returns the same call again. Without such a call it returns LingerAwaited if
	// the client waits for such a call still, unless last is set. Otherwise it returns LingerNone, and calls that are Left
	// under RepeatAuto can no longer be picked up: the client has gone on to other work. empty says that the client
	// has no entry at all.
	Take(ctx context.Context, client, call, op string, last bool, life time.Duration) (id ID, state LingerState, empty bool, err error)
	// Expire forgets a call whose time is over, or with force one that is Left. It returns for how long the call
	// stays otherwise, 0 if it is forgotten.
	Expire(ctx context.Context, client string, id ID, force bool) (left time.Duration, err error)
	// Drop forgets a call that nobody may pick up any more.
	Drop(ctx context.Context, e Lingering) error
	// Resume makes the calls of a client that are Awaited or Left Resumed, if their answers go out on this stream.
	Resume(ctx context.Context, client, stream string) error
	// Clients lists the clients that have calls which are Left.
	Clients(ctx context.Context) ([]string, error)
}
