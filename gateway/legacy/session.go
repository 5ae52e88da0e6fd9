package legacy

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"taskgate/gateway/endpoint"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/shim"
)

// Sessions keeps the states of client sessions between requests (protocol.md X6). They are opaque to it. It
// uses standard types only, so that a store outside of this module can implement it too.
//
// An error means that the sessions are unavailable just now; *shim.BusyError means that there is no room. A
// missing session is no error.
type Sessions interface {
	// Get returns the state of a session and its revision, which is 0 for an unknown session. Get counts as
	// use, and begins the idle time anew.
	Get(ctx context.Context, id string) (state []byte, rev int64, err error)

	// Make makes a session that counts towards the share of an owner, or with owner "" towards that of all without
	// one and of an address, "" for none. It returns its revision; 0 if the id is in use. If a share is full, another
	// session of it ends that has no call, stream or task: one without a Use first.
	Make(ctx context.Context, id, owner, address string, state []byte) (int64, error)

	// Use notes that a session has had a request besides its handshake, and that it is needed for a time. A failure
	// is forgotten.
	Use(ctx context.Context, id string, keep time.Duration)

	// Put stores the state if the revision still is rev, and returns the new revision. Each write makes a
	// revision that is used once; revisions tell states apart, and have no order. Put returns 0 and changes
	// nothing if the session has another revision or is gone.
	Put(ctx context.Context, id string, rev int64, state []byte) (int64, error)

	// Delete ends a session; an unknown id is no error.
	Delete(ctx context.Context, id string) error

	// Signal sends a signal to the replicas that know a session. The store passes the text on unread. The token
	// goes with the event only, and is stored nowhere: a replica that reads the signal later misses the token.
	Signal(ctx context.Context, id, text, token string) error

	// Logs are kept of the streams of a session, so that a client can resume one.
	Logs

	// Run ends idle sessions until ctx ends.
	//
	// It asks busy of each session whether this replica still holds streams or calls of it, which keep it from
	// being idle. It tells ended, on every replica that knew it, of each session that ended other than by
	// Delete here, with the last state known there. It tells signal, possibly more than once, of each signal
	// for a session known here, with the local time at which it was sent. All three must return at once, and
	// busy must not call back.
	Run(ctx context.Context, busy func(id string) bool, ended func(id string, state []byte), signal func(id, text, token string, at time.Time)) error
}

// Logs keeps the messages of the streams of sessions, within bounds, so that any replica can go on with a
// stream that broke (X8). The messages of all streams of a session are numbered together, and each number is
// used once. Only sessions that exist have logs.
type Logs interface {
	HeldLogs

	// Post is Append from any replica, also to a stream without a holder. It returns 0 only if the stream has
	// ended.
	Post(ctx context.Context, id, stream string, message []byte) (no int64, err error)

	// Bury ends a stream whose replica is gone, with the messages that last makes of its note and of its
	// messages. It returns false and changes nothing if the stream has a replica, or has changed meanwhile. A
	// replica that was only slow adds nothing more.
	Bury(ctx context.Context, id, stream string, last func(note []byte, had [][]byte) [][]byte) (buried bool, err error)

	// Since calls on with each message that a stream got after a number. It returns the state of the stream:
	// "open", "left", "ended", "lost" if its replica is gone, each with its note, or "" for an unknown stream.
	// A stream that is over is known for as long as the bounds keep its last message.
	//
	// A nil message is a gap: messages of any stream may be missing there, since the store came back older. Its
	// number is below the given one if that is newer than the log: the reader goes on from the end.
	Since(ctx context.Context, id, stream string, after int64, on func(no int64, message []byte)) (state string, note []byte, err error)

	// State is Since without the messages.
	State(ctx context.Context, id, stream string) (state string, note []byte, err error)

	// Watch calls wake once when watching has begun, and then for each possible change of the messages or the
	// state of a stream of the session, or of its state, until stop is called. While Run runs, it is called within half a
	// minute even for a change that this replica has failed to hear of. wake must return at once, and must not call back.
	Watch(id string, wake func()) (stop func())
}

// HeldLogs is the part of Logs for the replica that keeps a stream.
type HeldLogs interface {
	// Open makes this replica the holder of a stream, and returns the number before its first message. The note
	// is for a replica that finds the stream after its holder is lost.
	Open(ctx context.Context, id, stream string, note []byte) (after int64, err error)

	// Note changes the note of a stream. It returns false if this replica is no longer the holder.
	Note(ctx context.Context, id, stream string, note []byte) (kept bool, err error)

	// Append adds a message to a stream and returns its number; 0 if this replica is not the holder, or if the
	// stream has ended. An unknown stream is kept from then on, since the store may have come back older.
	// shim.ErrNotFound for an unknown session. The caller appends the messages of a stream one after the other.
	Append(ctx context.Context, id, stream string, message []byte) (no int64, err error)

	// Ask is Append for a message that asks a question. An asker is one client on one connection. If this asker
	// has asked the question on this stream, nothing is added: the first reply was lost. If another stream has
	// the question, nothing is added, and holder is that stream. A stream has a question until it is left, or
	// named as void. If it has ended, has is whether the client has the question: it has if it was still there
	// at the end.
	Ask(ctx context.Context, id, stream, asker, question, void string, message []byte) (no int64, holder string, has bool, err error)

	// Finish ends a stream, if this replica is the holder. gone is whether its client had gone before.
	Finish(ctx context.Context, id, stream string, gone bool) error

	// Leave gives a stream up, if this replica is the holder. A replica that opens it again goes on from the
	// note.
	Leave(ctx context.Context, id, stream string, note []byte) error
}

// sessionState is what is stored of a session, for its other requests and for other replicas.
type sessionState struct {
	// Upstream and Owner bind the session to the endpoint at which it was made, and to its maker. Another
	// caller gets the answer for an unknown id (Z7).
	Upstream string `json:"upstream"`
	Owner    string `json:"owner,omitempty"`
	// Opaque says that only the server knows the owner of the token with which the session began. The server
	// then decides who else may use the session, as it does until a caller signs in. Token is the owner of the
	// token that it took last, and TokenFrom the number of the newest message on the GET stream at that time: what was
	// kept before is for the token of then.
	Opaque    bool   `json:"opaque,omitempty"`
	Token     string `json:"token,omitempty"`
	TokenFrom int64  `json:"tokenFrom,omitempty"`

	// Version is the negotiated one (X7). Capabilities and ClientInfo are what the
	// client sent at initialize.
	Version      string          `json:"version"`
	Capabilities json.RawMessage `json:"capabilities,omitempty"`
	ClientInfo   json.RawMessage `json:"clientInfo,omitempty"`

	// Legacy says that the server spoke the legacy era when the session began. A server that speaks both eras
	// keeps the first one for the session.
	Legacy bool `json:"legacy,omitempty"`

	// Since is when the session was made, in seconds of Unix time by the clock of its maker. Maker is the name
	// of that replica (Table.name), which measures how long the session lasted. Both serve one metric.
	Since int64  `json:"since,omitempty"`
	Maker string `json:"maker,omitempty"`

	// LogLevel is what logging/setLevel asked for last; "" before that.
	LogLevel string `json:"logLevel,omitempty"`
	// Subscriptions are the URIs of resources/subscribe, sorted.
	Subscriptions []string `json:"subscriptions,omitempty"`
	// Rights stand for what its client was shown when it last read the list of tools (endpoint.RightsMark); "" before
	// that, and where no tool is hidden from anybody.
	Rights string `json:"rights,omitempty"`
	// Tasks are the tasks of the session whose end its client has yet to hear, oldest first (L34).
	Tasks []shim.ID `json:"tasks,omitempty"`
	// SessionQuestions are the records of what the server asks outside of any call.
	SessionQuestions []shim.ID `json:"sessionQuestions,omitempty"`
}

// withSubscription returns the state with a URI added to, or removed from, its subscriptions. The old list
// stays as it is: others may read it.
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

// maxSessionBytes bounds the stored state of a session: mostly what its client says of itself, and its
// subscriptions. Every request reads it.
const maxSessionBytes = 64 << 10

// namesRoom is the part of the bytes that is kept free for what is noted later: a bounded number of tasks and
// session questions, each with an id of 36 bytes, the log level, and the token. So these always find room.
const namesRoom = (mostTold+mostSessionQuestions)*39 + 200

// checkSize refuses a state that is too large with a *shim.BusyError.
func (st sessionState) checkSize() error {
	st.Tasks, st.SessionQuestions, st.LogLevel, st.Token, st.TokenFrom = nil, nil, "", "", 0
	if len(st.encode())+namesRoom > maxSessionBytes {
		return &shim.BusyError{Key: "max_session_bytes", Limit: "bytes in the state of this session"}
	}
	return nil
}

// addSubscription returns the state with one more subscription; a *shim.BusyError if there is no room.
func (st sessionState) addSubscription(uri string) (sessionState, error) {
	next := st.withSubscription(uri, true)
	if len(next.Subscriptions) == len(st.Subscriptions) { // it is there
		return st, nil
	}
	if err := endpoint.CheckSubscription(uri, len(st.Subscriptions)); err != nil {
		return st, err
	}
	return next, next.checkSize()
}

// belongsTo reports whether the session is that of a principal.
func (st sessionState) belongsTo(p shim.Principal) bool {
	owner := p.Owner()
	return owner == "" && st.isNobodys() || owner != "" && (owner == st.Owner || owner == st.Token)
}

// branchOf begins the names of what a principal has in the session for itself: its calls, and the streams of their
// answers. It is "" in a session whose owner is known, and for the token with which a session began. Nobody but the server
// knows whether a later token is of the same user.
func (st sessionState) branchOf(p shim.Principal) string {
	if !st.Opaque || p.Owner() == st.Owner {
		return ""
	}
	sum := sha256.Sum256([]byte(p.Owner()))
	return hex.EncodeToString(sum[:8]) + "~"
}

// keepsStream reports whether the stream of an answer is the principal's.
func (st sessionState) keepsStream(p shim.Principal, stream string) bool {
	branch, _, found := strings.Cut(stream, "~")
	return !found && st.branchOf(p) == "" || found && st.branchOf(p) == branch+"~"
}

// isNobodys reports whether the session still has no owner.
func (st sessionState) isNobodys() bool { return st.Owner == "" && st.Token == "" }

// takesPriming reports whether an event stream may begin with an event from which it can be resumed (X9).
func (st sessionState) takesPriming() bool { return mcp.LookupVersion(st.Version).Priming }

// encode keeps the words of the client as they are: json.Marshal would spell them anew.
func (st sessionState) encode() []byte {
	caps, info := st.Capabilities, st.ClientInfo
	st.Capabilities, st.ClientInfo = nil, nil
	b, _ := json.Marshal(st) // texts and numbers can always be written
	if caps != nil {
		b = jsonrpc.With(b, caps, "capabilities")
	}
	if info != nil {
		b = jsonrpc.With(b, info, "clientInfo")
	}
	return b
}

func decodeSession(b []byte) (sessionState, error) {
	var st sessionState
	if err := json.Unmarshal(b, &st); err != nil {
		return st, fmt.Errorf("session state: %w", err)
	}
	return st, nil
}
