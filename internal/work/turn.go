package work

// Turn is what one goroutine has at a time, also while it waits for a peer or for the store. A mutex is for what waits
// for nothing.
type Turn chan struct{}

// NewTurn makes a turn that nobody has.
func NewTurn() Turn { return make(Turn, 1) }

// Take waits for the turn.
func (t Turn) Take() { t <- struct{}{} }

// Give gives the turn back.
func (t Turn) Give() { <-t }
