package shim

import (
	"context"
	"encoding/json"
	"errors"
)

// piecesAtOnce bounds how many pieces one Update holds.
const piecesAtOnce = 256

// pieces reads what has been streamed of a task since the last time. Who reads was
// admitted when the task was first looked at, and neither owner nor upstream of a
// task change.
func (s *Shim) pieces(ctx context.Context) func(*followed) error {
	return func(k *followed) error {
		var list []json.RawMessage
		err := s.within(ctx, func(ctx context.Context) (err error) {
			if k.Show == ShowSegments {
				list, err = s.store.Segments(ctx, k.ID, k.place())
			} else {
				list, err = s.store.Batches(ctx, k.ID, k.place())
			}
			return err
		})
		if err != nil {
			return err
		}
		k.fetch(list)
		return nil
	}
}

// fetch takes the next pieces of a task, to be yielded.
func (k *followed) fetch(list []json.RawMessage) {
	first := max(k.From, k.least())
	for len(list) > 0 {
		n := min(len(list), piecesAtOnce)
		k.fetched = append(k.fetched, Update{ID: k.ID, Pieces: list[:n:n], First: first})
		list, first = list[n:], first+int64(n)
	}
}

// takePieces yields pieces that came with events, where they are the next ones, and
// reads the store where any may be missing.
func (f *follower) takePieces(k *followed, a Added) error {
	next, ok := a.after(k.Show, k.place())
	if !ok {
		return f.readPieces(k)
	}
	k.fetch(next)
	return f.yieldPieces(k)
}

// least is the number of the first piece that a task can have.
func (k *followed) least() int64 {
	if k.Show == ShowSegments {
		return 1
	}
	return 0
}

// place is how many pieces come before the next one.
func (k *followed) place() int64 { return max(k.From-k.least(), 0) }

// behind reports whether there are pieces that have not been yielded.
func (k *followed) behind(p Position) bool {
	switch k.Show {
	case ShowBatches:
		return p.Batches > k.place()
	case ShowSegments:
		return p.Segments > k.place()
	default:
		return false
	}
}

// readPieces yields the pieces that are new. While the store is down it yields
// none, and notes the task to be read again.
func (f *follower) readPieces(k *followed) error {
	switch err := f.pieces(k); {
	case errors.Is(err, ErrNotFound):
		return ErrBehind
	case err != nil:
		f.unread = append(f.unread, k)
		return nil
	}
	return f.yieldPieces(k)
}

// yieldPieces yields what has been fetched.
func (f *follower) yieldPieces(k *followed) error {
	fetched := k.fetched
	k.fetched = nil
	for _, u := range fetched {
		k.From = u.First + int64(len(u.Pieces))
		if err := f.yield(u); err != nil {
			return err
		}
	}
	return nil
}
