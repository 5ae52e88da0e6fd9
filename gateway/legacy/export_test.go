package legacy

import (
	"context"

	"taskgate/shim"
)

// What the tests over HTTP, which are outside of the package, look at inside of it.
const (
	AskAgain    = askAgain
	GetFirst    = getFirst
	GetStream   = getStream
	HolderCheck = holderCheck
	MostTold    = mostTold
	ResumeCheck = resumeCheck
	StoreAgain  = storeAgain
)

var (
	LastWords         = lastWords(replicaLost)
	ParseEventID      = parseEventID
	PartialOf         = partialOf
	QuestionName      = questionName
	ReadQuestion      = readQuestion
	NewBrokenSessions = newBrokenSessions
)

// Busy reports whether a request or a stream of the session is open here.
func (t *Table) Busy(id string) bool { return t.isBusy(id) }

// FillLate leaves no room for messages that wait for the store.
func (t *Table) FillLate() { t.late, t.most = 1, 1 }

// Listens reports whether this replica listens to the server for a session.
func (t *Table) Listens(id string) bool {
	t.mu.Lock()
	s := t.live[id]
	t.mu.Unlock()
	return s != nil && s.listen.isActive()
}

// Agreed is what this replica listens for on behalf of a session.
func (t *Table) Agreed(id string) shim.Filter {
	s := t.pinSession(id)
	defer s.endUse()
	s.listen.mu.Lock()
	defer s.listen.mu.Unlock()
	return s.listen.agreed
}

// Load is the state of a session as the store has it.
func (t *Table) Load(ctx context.Context, id string) (sessionState, error) {
	s := t.pinSession(id)
	defer s.endUse()
	return s.loadState(ctx)
}

// open finds a session of a principal.
func (t *Table) open(ctx context.Context, id, upstream string, p shim.Principal) (*session, error) {
	return t.findSession(ctx, id, func(st sessionState) bool { return st.Upstream == upstream && st.belongsTo(p) })
}

// Current is the state of a session as a request finds it.
func (t *Table) Current(ctx context.Context, id, upstream string, p shim.Principal) (sessionState, error) {
	s, err := t.open(ctx, id, upstream, p)
	if err != nil {
		return sessionState{}, err
	}
	defer s.endUse()
	return s.currentState(), nil
}
