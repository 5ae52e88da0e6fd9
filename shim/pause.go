package shim

import (
	"context"
	"time"
)

// Pause says that an operator has paused the new calls of a server's tools, or of one tool. Calls under way go on.
type Pause struct {
	Upstream string    // configured name
	Tool     string    // as the server calls it; "" for all of its tools
	By       string    // the operator, "" for one without a name
	Since    time.Time // by the clock of the store
}

// Pauses keeps what operators have paused, for all replicas, until they resume it. Replicas hear of each change by
// Event.Goodbye in their Inbox. Every method may return ErrUnavailable, and may be repeated.
type Pauses interface {
	// Pause adds a pause, and returns the one that counts: an earlier one of the same tools stays.
	Pause(ctx context.Context, p Pause) (Pause, error)
	// Resume ends a pause, of which it takes Upstream and Tool; there need not be one.
	Resume(ctx context.Context, p Pause) error
	// Paused lists all of them, in the order of their names.
	Paused(ctx context.Context) ([]Pause, error)
}

// KeyPaused is the BusyError.Key of a call that an operator has paused.
const KeyPaused = "paused"

// RetryPaused is the BusyError.RetryAfter of such a call.
const RetryPaused = 30 * time.Second
