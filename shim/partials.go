package shim

import "time"

// Partials is what becomes of what a tool says while it runs (protocol.md 6.4).
// The zero value makes hints of it, unbounded and each at once.
type Partials struct {
	// Content says that the messages of progress are pieces of the result; else
	// they are hints.
	Content bool
	// Most bounds the batches that are kept of one task, MostBytes their bytes; 0 is
	// no bound. What comes after it is left out, and the reader is told (see batcher).
	Most      int
	MostBytes int64
	// Interval is the least time between two batches of a task, and Bytes how much
	// may gather before one goes in spite of it. Without an interval each piece is a
	// batch of its own, at once.
	Interval time.Duration
	Bytes    int
}

// What holds for the partial results of every task in production.
const (
	// mostPartials and mostPartialBytes bound what one task leaves in the store beside its
	// result: a tool that reports each of a million steps fills it no further.
	mostPartials     = 10_000
	mostPartialBytes = 8 << 20
	// partialInterval has tokens of a model go together, 20 times a second, which readers
	// take for a flow. partialBytes is one write of a usual size.
	partialInterval = 50 * time.Millisecond
	partialBytes    = 64 << 10
)

// NewPartials bounds and gathers what a tool says. content says that the messages of its
// progress are pieces of the result.
func NewPartials(content bool) Partials {
	return Partials{Content: content, Most: mostPartials, MostBytes: mostPartialBytes, Interval: partialInterval, Bytes: partialBytes}
}
