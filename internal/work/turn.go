package work

import "context"

// Turn is what one goroutine has at a time, also while it waits for a peer or for the store. A mutex is for what waits
// for nothing. Those who wait get it in the order of their arrival.
type Turn chan struct{}

// NewTurn makes a turn that nobody has.
func NewTurn() Turn { return make(Turn, 1) }

// Take waits for the turn.
func (t Turn) Take() { t <- struct{}{} }

// TakeWithin is Take, and returns the cause of ctx if that ends first.
func (t Turn) TakeWithin(ctx context.Context) error {
	select {
	case t <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Give gives the turn back.
func (t Turn) Give() { <-t }
