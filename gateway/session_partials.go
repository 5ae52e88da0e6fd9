package gateway

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strconv"
	"sync"

	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/shim"
	"taskgate/shim/dialect"
)

// Partial results on the GET stream of a session whose client takes them (SEP-2679).
// They are read from the store, where they stay: what the stream does not take waits
// there. Each goes out through the log of the stream, from which a client that resumes
// gets what it has missed, and what the log has, the next stream goes on after. So a
// client that resumes finds neither gap nor repeat in seq (P4). A stream that is not
// resumed begins each task anew, from 0.

// mostUnsent is how many partial results wait for the stream at a time.
const mostUnsent = 16

// counting is what is known of what a client counts on its GET stream. A nil one is of
// a client that counts nothing.
type counting struct {
	next  map[shim.ID]int64 // seq that the client has not been sent
	from  map[shim.ID]int64 // seq that is not in the log
	fresh map[shim.ID]bool  // tasks whose partial results begin anew after last
	anew  bool              // the client has begun with 0, now or since a mark in the log
	last  int64
}

// anewMark in the log of a GET stream says that its client begins anew, and counts from 0
// from there on. It is not sent.
var anewMark = []byte{}

// count reads from the log how far the client has come, that resumes the stream after
// message no. Without the log that is not known, and nothing can be counted.
func (s *session) count(ctx context.Context, no int64, resumes bool) (*counting, error) {
	c := &counting{next: make(map[shim.ID]int64), from: make(map[shim.ID]int64), fresh: make(map[shim.ID]bool), anew: !resumes}
	if !resumes {
		for _, id := range s.current().Tasks {
			c.fresh[id] = true
		}
		return c, nil
	}
	_, _, err := s.table.store.Since(ctx, s.id, standingStream, 0, func(at int64, message []byte) {
		if len(message) == 0 && at <= no {
			clear(c.next)
			clear(c.from)
			c.anew = true
		}
		id, seq, ok := partialOf(message)
		if !ok {
			return
		}
		c.from[id] = c.after(c.from[id], seq)
		if at <= no {
			c.next[id] = c.after(c.next[id], seq)
		}
	})
	return c, err
}

// after is what comes next in a log where next was due, after seq. From a mark on, only
// what continues counts; without one, the log does not reach back to where the client
// began.
func (c *counting) after(next, seq int64) int64 {
	if c.anew && seq != next {
		return next
	}
	return max(next, seq+1)
}

// floor notes the last message that was in the log when the stream began.
func (c *counting) floor(last int64) {
	if c != nil {
		c.last = last
	}
}

// due reports whether a message of the log is to be sent. Of what was there when the
// stream began, a partial result is not if it will come anew, or has been sent, and no
// status is that will come anew after those. Of what
// comes after it, only the next one is: another replica that had the stream may go on
// with it for a moment. To a client that began anew nothing is sent but from 0 on: it
// may have lost what was sent before, and a task that has ended is not told of again.
func (c *counting) due(no int64, message []byte) bool {
	if c == nil {
		return true
	}
	before := no <= c.last
	id, seq, ok := partialOf(message)
	if !ok {
		return !before || !c.fresh[statusOf(message)]
	}
	if before && (c.fresh[id] || seq < c.next[id]) || (!before || c.anew) && seq != c.next[id] {
		return false
	}
	c.next[id] = seq + 1
	return true
}

// partialOf reads a message that is a partial result.
func partialOf(message []byte) (id shim.ID, seq int64, ok bool) {
	if method, _ := jsonrpc.GetString(message, "method"); method != mcp.NotifyTaskPartial {
		return "", 0, false
	}
	task, _ := jsonrpc.GetString(message, "params", "taskId")
	raw, _ := jsonrpc.Get(message, "params", "seq")
	seq, err := strconv.ParseInt(string(raw), 10, 64)
	return shim.ID(task), seq, err == nil
}

// statusOf is the task of which a message tells the status, "" for any other message.
func statusOf(message []byte) shim.ID {
	if method, _ := jsonrpc.GetString(message, "method"); method != mcp.NotifyTaskStatus {
		return ""
	}
	task, _ := jsonrpc.GetString(message, "params", "taskId")
	return shim.ID(task)
}

// partials is the part of a teller that tells of partial results.
type partials struct {
	from  map[shim.ID]int64 // where to begin
	room  chan struct{}     // holds one token for each that waits
	lost  func()            // ends the stream: some are gone
	turns sync.Mutex        // held while the teller tells
}

// runEach follows each task of the session by itself, from when it is heard of: one
// that says much does not hold up the others, and none begins anew for a new one.
func (t *teller) runEach(ctx context.Context) {
	var each sync.WaitGroup
	defer each.Wait()
	followed := make(map[shim.ID]bool)
	for {
		ids := t.s.current().Tasks
		maps.DeleteFunc(followed, func(id shim.ID, _ bool) bool { return !slices.Contains(ids, id) })
		for _, id := range ids {
			if !followed[id] {
				followed[id] = true
				each.Go(func() { t.track(ctx, id) })
			}
		}
		if !t.more(ctx, ids) {
			return
		}
	}
}

// track tells of one task until it has ended: its partial results, in order, before
// its state (P3), and nothing after it has ended (P2).
func (t *teller) track(ctx context.Context, id shim.ID) {
	from := t.partials.from[id]
	err := t.e.shim.Track(ctx, t.p, t.e.name, []shim.Tracked{{ID: id, Show: shim.ShowBatches, From: from}}, func(u shim.Update) error {
		for i, content := range u.Pieces {
			if err := t.tellPartial(ctx, dialect.Legacy.Partial(id, u.First+int64(i), content)); err != nil {
				return err
			}
		}
		if u.Task == nil {
			return nil
		}
		t.partials.turns.Lock()
		defer t.partials.turns.Unlock()
		t.asks.look(ctx, *u.Task)
		return t.tell(*u.Task)
	})
	if errors.Is(err, shim.ErrBehind) {
		t.partials.lost() // a client must not take what it has for all there was
	}
}

// tellPartial has a partial result go out, once there is room for it.
func (t *teller) tellPartial(ctx context.Context, params []byte) error {
	room := t.partials.room
	select {
	case room <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	t.s.out.putNumbered(waiting{text: jsonrpc.AppendNotification(nil, mcp.NotifyTaskPartial, params), gone: func() { <-room }})
	return nil
}
