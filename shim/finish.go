package shim

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
)

// This file puts the last of what a task streamed into the change that ends it: the
// tail and the final status are one step (design.md 0.19, P3).

// finish completes the change that ends the task: with the pieces that are not
// stored yet, and, where the call streamed, with the merge for a result. Of a
// cancelled task nothing more is shown (P13).
func (r *run) finish(c *Change) {
	b := r.batcher
	if b == nil || c.To == Cancelled {
		return
	}
	if !r.call.Streaming || c.Outcome.Result == nil {
		c.Tail, c.At = r.batcher.batches()
		return
	}
	streamed := r.segments()
	c.Tail, c.At = b.batches()
	for _, e := range c.Tail {
		streamed = append(streamed, e.Segments...)
	}
	out := *c.Outcome
	merged, added := merge(out.Result, streamed)
	out.Result = merged
	c.Outcome = &out
	if len(added) > 0 {
		c.Tail = append(c.Tail, Batch{Segments: added})
	}
}

// segments are those that are in the store before the queue, which goes on where
// they end.
func (r *run) segments() []json.RawMessage {
	b := r.batcher
	if b.at.Segments == 0 {
		return nil
	}
	var stored []json.RawMessage
	err := r.s.retry(r.s.writes, func(ctx context.Context) (err error) {
		stored, err = r.s.store.Segments(ctx, r.task.id, 0)
		return err
	})
	if err != nil && !errors.Is(err, ErrNotFound) {
		return nil // this process ends, and nothing is written any more
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if int64(len(stored)) < b.at.Segments { // it has lost some
		b.rewind(Position{Batches: b.at.Batches, Segments: int64(len(stored))})
	}
	return slices.Clip(stored[:b.at.Segments])
}

// refit makes the end fit a store that has lost some of what was streamed.
func (r *run) refit(c *Change) {
	var t Task
	err := r.s.retry(r.s.writes, func(ctx context.Context) (err error) {
		t, err = r.s.store.Get(ctx, r.task.id, Summary)
		return err
	})
	if err == nil {
		c.refit(r.streamed(), t.Position)
	}
}

// streamed is what is still known of what was stored before the tail.
func (r *run) streamed() []Batch {
	if r.batcher == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return batchesOf(r.batcher.kept)
}

// refit makes the change that ends a task fit a store that has only come to had, and
// lost what was streamed after it: streamed is what was stored last before the tail.
// The segments of a merged result are its blocks, so none of them is ever missing;
// of hints, what is no longer known is lost.
func (c *Change) refit(streamed []Batch, had Position) {
	all, at := slices.Concat(streamed, c.Tail), c.At
	for _, b := range slices.Backward(streamed) {
		at = at.before(b)
	}
	merged := c.Outcome != nil && c.At.Segments > 0 && c.Outcome.Result != nil
	switch {
	case at.Batches <= had.Batches && at.Segments <= had.Segments:
		c.Tail, c.At = all, at
	case merged:
		blocks := blocksOf(c.Outcome.Result)
		c.Tail, c.At = []Batch{{Segments: blocks[min(int(had.Segments), len(blocks)):]}}, had
	default:
		c.Tail, c.At = nil, Position{}
	}
}

// size is how many bytes a batch has.
func (b Batch) size() int64 {
	n := int64(len(b.Content))
	for _, s := range b.Segments {
		n += int64(len(s))
	}
	return n
}
