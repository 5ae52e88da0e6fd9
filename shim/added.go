package shim

import "encoding/json"

// mostAdded bounds what is kept for a reader of pieces that came with events, in bytes.
// One that is further behind reads them from the store.
const mostAdded = 16 << 10

// Added are pieces that an Append has stored, as its Event tells of them. The zero value
// says nothing of what there is.
type Added struct {
	// At is how many pieces come before them.
	At int64
	// Pieces are these, in order. They are not changed by anybody.
	Pieces []json.RawMessage
}

// Then is a followed by what a later event of the same task has added. Where that does
// not go on where a ends, or is too much to be kept, it is nothing: the store is to be
// read.
func (a Added) Then(b Added) Added {
	if len(a.Pieces) == 0 || a.At+int64(len(a.Pieces)) != b.At {
		return Added{}
	}
	size := 0
	for _, pieces := range [][]json.RawMessage{a.Pieces, b.Pieces} {
		for _, p := range pieces {
			size += len(p)
		}
	}
	if size > mostAdded {
		return Added{}
	}
	a.Pieces = append(a.Pieces[:len(a.Pieces):len(a.Pieces)], b.Pieces...)
	return a
}

// after are the pieces of a that come after the first n, and whether a has
// all that there was when it was told of, as far as it knows.
func (a Added) after(n int64) ([]json.RawMessage, bool) {
	if len(a.Pieces) == 0 || a.At > n {
		return nil, false
	}
	return a.Pieces[min(n-a.At, int64(len(a.Pieces))):], true
}
