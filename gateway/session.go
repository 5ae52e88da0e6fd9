package gateway

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"taskgate/shim"

	"github.com/google/uuid"
)

// Sessions keeps the states of client sessions (protocol.md X6) between
// requests. A state is opaque to it. It speaks of standard types only, so that a
// store that does not know this package can implement it too.
//
// Every error means that the sessions cannot be read or written just now, never
// that one does not exist; *shim.BusyError means that there is no room.
type Sessions interface {
	// Get returns the state of a session and its revision; revision 0 says that
	// there is no such session. To ask for a session is to use it: its idle time
	// begins anew.
	Get(ctx context.Context, id string) (state []byte, rev int64, err error)

	// Put stores the state where the revision still is rev, and returns the new
	// revision. With rev 0 it makes the session. It returns 0 and changes nothing
	// if the revision has moved on, or the session exists already or no longer.
	Put(ctx context.Context, id string, rev int64, state []byte) (int64, error)

	// Delete ends a session. It is no error if there is none.
	Delete(ctx context.Context, id string) error

	// Signal leaves a word for the replicas that are busy with a session.
	Signal(ctx context.Context, id, word string) error

	// Run ends idle sessions until ctx ends. It asks busy for each whether this
	// replica still holds streams or calls of it, which keep a session from being
	// idle, and tells ended of each that is gone other than by Delete here, on every
	// replica that knew it, and signal of each word that was left for a session that
	// is busy here, possibly more than once. None of them may block, and busy must
	// not call back.
	Run(ctx context.Context, busy func(id string) bool, ended func(id string), signal func(id, word string)) error
}

// sessionState is what is stored of a session: all that another request of it,
// or another replica, has to know.
type sessionState struct {
	// Upstream and Owner bind the session: to the endpoint it was made at, and to
	// who made it. Anyone else gets the answer for an unknown id (Z7).
	Upstream string `json:"upstream"`
	Owner    string `json:"owner,omitempty"`

	// Version is the negotiated one (X7). Capabilities and ClientInfo are what the
	// client sent at initialize.
	Version      string          `json:"version"`
	Capabilities json.RawMessage `json:"capabilities,omitempty"`
	ClientInfo   json.RawMessage `json:"clientInfo,omitempty"`

	// Initialized says that notifications/initialized has come (X10).
	Initialized bool `json:"initialized,omitempty"`
	// LogLevel is what logging/setLevel asked for last; "" before that.
	LogLevel string `json:"logLevel,omitempty"`
	// Subscriptions are the URIs of resources/subscribe, sorted.
	Subscriptions []string `json:"subscriptions,omitempty"`
	// Tasks are those made in the session of whose end its client has not been
	// told, oldest first (L34).
	Tasks []shim.ID `json:"tasks,omitempty"`
}

// subscribed returns the state with a URI added to, or removed from, its
// subscriptions. The list of the old state is not changed: others may read it.
func (st sessionState) subscribed(uri string, on bool) sessionState {
	i, found := slices.BinarySearch(st.Subscriptions, uri)
	switch {
	case on && !found:
		st.Subscriptions = slices.Insert(slices.Clone(st.Subscriptions), i, uri)
	case !on && found:
		st.Subscriptions = slices.Delete(slices.Clone(st.Subscriptions), i, i+1)
	}
	return st
}

// belongs reports whether a principal may use the session at this endpoint.
func (st sessionState) belongs(upstream string, p shim.Principal) bool {
	return st.Upstream == upstream && st.Owner == p.Owner()
}

func (st sessionState) encode() ([]byte, error) {
	b, err := json.Marshal(st)
	if err != nil {
		return nil, fmt.Errorf("session state: %w", err)
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

// newSessionID mints the id of a session: visible ASCII with 122 random bits
// (X6, Z7).
func newSessionID() (string, error) {
	u, err := uuid.NewRandom()
	if err != nil {
		return "", fmt.Errorf("session id: %w", err)
	}
	return u.String(), nil
}
