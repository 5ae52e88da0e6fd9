package legacy

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"taskgate/gateway/endpoint"
	"taskgate/gateway/wire"
	"taskgate/internal/jsonrpc"
	"taskgate/shim"
)

// Sessions keeps the states of client sessions (protocol.md X6) between
// requests. A state is opaque to it. It speaks of standard types only, so that a
// store that does not know this package can implement it too.
//
// Every error means that the sessions cannot be read or written just now, never
// that one does not exist; *shim.BusyError means that there is no room.
type Sessions interface {
	// Get returns the state of a session and its revision; revision 0 says that
	// there is no such session. Get counts as use, and begins the idle time anew.
	Get(ctx context.Context, id string) (state []byte, rev int64, err error)

	// Make makes a session of an owner, or of nobody who is known by name (""), and
	// returns its revision; 0 if there is one with this id.
	Make(ctx context.Context, id, owner string, state []byte) (int64, error)

	// Put stores the state where the revision still is rev, and returns the new
	// revision. Revisions tell states apart, and have no order: each write makes one that
	// was never before. It returns 0 and changes nothing if the revision has moved on, or
	// there is no such session.
	Put(ctx context.Context, id string, rev int64, state []byte) (int64, error)

	// Delete ends a session. It is no error if there is none.
	Delete(ctx context.Context, id string) error

	// Signal sends a signal to the replicas that know a session. The store passes the text on,
	// and knows nothing of what it means. The token goes with it, and is stored nowhere: who hears the
	// signal later hears it without the token.
	Signal(ctx context.Context, id, text, token string) error

	// Logs are kept of the streams of a session, so that a client can resume one.
	Logs

	// Run ends idle sessions until ctx ends. It asks busy for each whether this
	// replica still holds streams or calls of it, which keep a session from being
	// idle, and tells ended of each that is gone other than by Delete here, on every
	// replica that knew it, with the state that it last had there, and signal of each signal that was sent for a session that
	// is known here, possibly more than once, with the time here at which it was sent.
	// None of them may block, and busy must not call back.
	Run(ctx context.Context, busy func(id string) bool, ended func(id string, state []byte), signal func(id, text, token string, at time.Time)) error
}

// Logs keeps what goes out on the streams of sessions, within bounds, so that any
// replica can go on with a stream that broke (X8). Messages of all streams of a
// session are numbered together, and no number is given out twice. Nothing is kept of a session that is not there.
type Logs interface {
	HeldLogs

	// Post is Append from any replica, also to a stream that nobody keeps; 0 only where
	// it has ended.
	Post(ctx context.Context, id, stream string, message []byte) (no int64, err error)

	// Bury ends a stream whose replica is gone, with the messages that last makes of its
	// note and of what it had. It reports false, and changes nothing, where the stream is
	// not lost, or has changed meanwhile. A replica that was only slow adds nothing more.
	Bury(ctx context.Context, id, stream string, last func(note []byte, had [][]byte) [][]byte) (buried bool, err error)

	// Since hands over the messages that a stream got after a number, and returns
	// what has become of it: "open", "left", "ended", "lost" if its replica is gone, with
	// its note, or "" if the session has no such stream. A stream that is over is known
	// for as long as the bounds keep what came last. A message is nil where some of any
	// stream may be missing, since the store came back older. Its number is below the one
	// that was given where that is newer than the log: the reader goes on from the end.
	Since(ctx context.Context, id, stream string, after int64, on func(no int64, message []byte)) (state string, note []byte, err error)

	// State is Since without the messages.
	State(ctx context.Context, id, stream string) (state string, note []byte, err error)

	// Watch calls wake once when watching has begun, and then whenever a stream of the
	// session may have a new message or its state may have changed, until ctx ends. wake
	// must neither block nor call back.
	Watch(ctx context.Context, id string, wake func())
}

// HeldLogs is the part of Logs for the replica that keeps a stream.
type HeldLogs interface {
	// Open makes this replica the one that keeps a stream, and returns the number that
	// its messages come after. The note is for whoever finds the stream without its
	// replica.
	Open(ctx context.Context, id, stream string, note []byte) (after int64, err error)

	// Note changes the note of a stream, and reports false where this replica does not
	// keep the stream any more.
	Note(ctx context.Context, id, stream string, note []byte) (kept bool, err error)

	// Append adds a message to a stream and returns its number; 0 where this replica
	// does not keep the stream, or it has ended. A stream that nobody knows, since the store came back
	// older, is kept from then on. shim.ErrNotFound for a session that is not there. It is called for one message of
	// a stream after the other.
	Append(ctx context.Context, id, stream string, message []byte) (no int64, err error)

	// Ask is Append for a message that asks a question. Where this asker has asked it on
	// this stream, nothing is added: its first reply was lost. An asker is one client on one
	// connection. Where another stream has the question, nothing is added, and holder is
	// that one. A stream has a question
	// until it is left, or named as void. If it has ended, the client has the question,
	// unless the client had gone by then.
	Ask(ctx context.Context, id, stream, asker, question, void string, message []byte) (no int64, holder string, has bool, err error)

	// Finish says that nothing more comes on a stream, if this replica keeps it, and
	// whether its client had gone before.
	Finish(ctx context.Context, id, stream string, gone bool) error

	// Leave gives a stream up, if this replica keeps it: whoever opens it again goes on
	// from what the note says.
	Leave(ctx context.Context, id, stream string, note []byte) error
}

// sessionState is what is stored of a session: all that another request of it,
// or another replica, has to know.
type sessionState struct {
	// Upstream and Owner bind the session: to the endpoint it was made at, and to
	// who made it. Anyone else gets the answer for an unknown id (Z7).
	Upstream string `json:"upstream"`
	Owner    string `json:"owner,omitempty"`
	// Opaque says that only the server knows whose the token was that the session has begun with. Then, and
	// where nobody has signed in, the server decides who else may use it: Token is whose token it has taken last.
	Opaque bool   `json:"opaque,omitempty"`
	Token  string `json:"token,omitempty"`

	// Version is the negotiated one (X7). Capabilities and ClientInfo are what the
	// client sent at initialize.
	Version      string          `json:"version"`
	Capabilities json.RawMessage `json:"capabilities,omitempty"`
	ClientInfo   json.RawMessage `json:"clientInfo,omitempty"`

	// Legacy says that the server spoke the legacy era when the session began. If it speaks
	// both, the session stays in the one in which it began.
	Legacy bool `json:"legacy,omitempty"`

	// Since is when the session was made, in seconds of Unix time by the clock of the replica that
	// made it, and Maker the name of that (Table.name), which measures how long the session was.
	// Both are for a metric alone.
	Since int64  `json:"since,omitempty"`
	Maker string `json:"maker,omitempty"`

	// LogLevel is what logging/setLevel asked for last; "" before that.
	LogLevel string `json:"logLevel,omitempty"`
	// Subscriptions are the URIs of resources/subscribe, sorted.
	Subscriptions []string `json:"subscriptions,omitempty"`
	// Tasks are those made in the session of whose end its client has not been
	// told, oldest first (L34).
	Tasks []shim.ID `json:"tasks,omitempty"`
	// SessionQuestions are the records of what the server asks outside of any call.
	SessionQuestions []shim.ID `json:"sessionQuestions,omitempty"`
}

// withSubscription returns the state with a URI added to, or removed from, its
// subscriptions. The list of the old state is not changed: others may read it.
func (st sessionState) withSubscription(uri string, on bool) sessionState {
	i, found := slices.BinarySearch(st.Subscriptions, uri)
	switch {
	case on && !found:
		st.Subscriptions = slices.Insert(slices.Clone(st.Subscriptions), i, uri)
	case !on && found:
		st.Subscriptions = slices.Delete(slices.Clone(st.Subscriptions), i, i+1)
	}
	return st
}

// maxSessionBytes is how large what is stored of a session may be, without its log: above all what
// its client says of itself, and its subscriptions. Every request reads it.
const maxSessionBytes = 64 << 10

// stateLimits bound what a client can have stored with its session.
type stateLimits struct {
	bytes         int // of the whole state, as it is stored
	subscriptions int
	uri           int // bytes of the URI of one
}

// sessionLimits are those of every session.
var sessionLimits = stateLimits{bytes: maxSessionBytes, subscriptions: endpoint.MaxSubscriptions, uri: endpoint.MaxURI}

// namesRoom is what of the bytes is kept free for what is noted while the session lasts: its
// tasks and the questions of its server, of which there are only so many, each with an id of
// 36 bytes, its log level, and its token. So nothing of that is ever refused for want of room.
const namesRoom = (mostTold+mostSessionQuestions)*39 + 200

// checkSize refuses a state that is too large with a *shim.BusyError.
func (l stateLimits) checkSize(st sessionState) error {
	st.Tasks, st.SessionQuestions, st.LogLevel, st.Token = nil, nil, "", ""
	b, err := st.encode()
	if err == nil && len(b)+namesRoom > l.bytes {
		err = &shim.BusyError{Key: "max_session_bytes", Limit: "bytes in the state of this session"}
	}
	return err
}

// addSubscription is the state with one more subscription. It is a *shim.BusyError if there is no
// room for that.
func (l stateLimits) addSubscription(st sessionState, uri string) (sessionState, error) {
	next := st.withSubscription(uri, true)
	switch {
	case len(next.Subscriptions) == len(st.Subscriptions): // it is there
		return st, nil
	case len(uri) > l.uri:
		return st, wire.LongURI()
	case len(next.Subscriptions) > l.subscriptions:
		return st, wire.ManySubscriptions()
	}
	return next, l.checkSize(next)
}

// belongsTo reports whether the session is that of a principal.
func (st sessionState) belongsTo(p shim.Principal) bool {
	if p.Owner() == st.Owner && (st.Owner != "" || st.Token == "") {
		return true
	}
	return st.Token != "" && st.Token == p.Owner()
}

// isNobodys reports whether nobody has signed in to the session.
func (st sessionState) isNobodys() bool { return st.Owner == "" && st.Token == "" }

// encode keeps the words of the client as they are. (json.Marshal would spell them anew.)
func (st sessionState) encode() ([]byte, error) {
	caps, info := st.Capabilities, st.ClientInfo
	st.Capabilities, st.ClientInfo = nil, nil
	b, err := json.Marshal(st)
	if err != nil {
		return nil, fmt.Errorf("session state: %w", err)
	}
	if caps != nil {
		b = jsonrpc.With(b, caps, "capabilities")
	}
	if info != nil {
		b = jsonrpc.With(b, info, "clientInfo")
	}
	return b, nil
}

func decodeSession(b []byte) (sessionState, error) {
	var st sessionState
	if err := json.Unmarshal(b, &st); err != nil {
		return st, fmt.Errorf("session state: %w", err)
	}
	return st, nil
}
