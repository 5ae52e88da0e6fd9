package gateway

import (
	"context"
	"crypto/rand"
	"errors"

	"taskgate/shim"
)

// Between two streams of a client, what was asked on the first may be answered, withdrawn,
// or out of time; and a task whose result it waits for may ask something else. So who goes
// on with a stream leaves out the one, and asks the other.

// replay knows which of the messages with which a stream goes on ask what nobody waits
// for any more.
type replay struct {
	e    *endpoint
	p    shim.Principal
	open map[shim.ID]map[string]bool // by call, keys of its open questions
}

func (e *endpoint) newReplay(p shim.Principal) *replay {
	return &replay{e: e, p: p, open: make(map[shim.ID]map[string]bool)}
}

// stale reports whether a message does. While that cannot be known, it does not.
func (r *replay) stale(ctx context.Context, message []byte) bool {
	call, key, over, ok := readQuestion(message)
	if !ok || over {
		return false
	}
	open, known := r.open[call]
	if !known {
		questions, err := r.e.shim.Outstanding(ctx, r.p, r.e.name, call)
		if err != nil && !errors.Is(err, shim.ErrNotFound) {
			return false
		}
		open = make(map[string]bool)
		for _, q := range questions {
			open[q.Key] = true
		}
		r.open[call] = open
	}
	return !open[key]
}

// askResumed delivers the questions of tasks to a client that has resumed the stream on
// which it waits for their results, until the function it returns is called. The replica
// that answers the request takes the client for gone, and does not ask any more. The
// questions go into the log of the stream, as there, and the claims name a stream of their
// own, since this replica may be lost without that one.
func (t *tail) askResumed(ctx context.Context, note []byte) (stop func()) {
	var stops []func()
	if answerable(t.s.current().Capabilities) != nil {
		for _, n := range readAskNotes(note) {
			stops = append(stops, t.ask(ctx, n))
		}
	}
	return func() {
		for _, stop := range stops {
			stop()
		}
	}
}

// ask is askResumed for one task.
func (t *tail) ask(ctx context.Context, n askNote) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	store, own, opened := t.s.table.store, rand.Text()[:16], false
	put := func(_ string, message []byte) error {
		no, err := store.Append(ctx, t.s.id, t.stream, message)
		if err == nil && no == 0 {
			err = errTaken
		}
		return err
	}
	c := newCourier(ctx, t.replay.e, t.s, t.replay.p, own, line{
		ready: func(ctx context.Context) error {
			if opened {
				return nil
			}
			_, err := store.Open(ctx, t.s.id, own, noteOf(nil))
			opened = err == nil
			return err
		},
		ask:  put,
		over: func(about string, message []byte) { _ = put(about, message) },
	})
	c.past = &past{stream: t.stream}
	if !n.First {
		c.how = (*courier).lookLater
	}
	following := c.follow(n.Task)
	return func() {
		cancel()
		following.Wait()
		c.work.Wait()
		if t.client.Err() != nil {
			c.leave(n.Task)
		} else {
			c.keep(n.Task)
		}
		if opened {
			t.s.table.finishLog(t.s.id, own, nil)
		}
	}
}
