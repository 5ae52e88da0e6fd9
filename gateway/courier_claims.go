package gateway

import (
	"context"
	"errors"

	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/shim"
)

// A stream that dies with its replica tells nobody, and the questions that it had claimed
// do not change. So a stream that finds a question claimed by another one looks after that
// from time to time, as long as there is such a question and no longer.

// claimCheck is how often it is looked whether a stream lives that has claimed a question:
// as often as a client that has resumed a stream is told that its replica is gone.
const claimCheck = resumeCheck

// watchOthers begins to look after the streams that have claimed what this one could
// deliver, if there are any. c.mu is held.
func (c *courier) watchOthers() {
	if len(c.others) == 0 || c.checking || c.ctx.Err() != nil {
		return
	}
	c.checking = true
	c.work.Go(c.checkOthers)
}

// checkOthers looks until there is nothing left to. A stream has to be found dead twice
// before its questions are delivered here by that: its client may be about to resume it.
func (c *courier) checkOthers() {
	var suspects map[string]bool
	for rest(c.ctx, claimCheck) {
		ids := c.claimedByOthers()
		if ids == nil {
			return
		}
		now := make(map[string]bool)
		for _, id := range ids {
			c.check(id, suspects, now)
		}
		suspects = now
	}
}

// claimedByOthers are the tasks to look after; nil, and the looking is over, if there is
// none.
func (c *courier) claimedByOthers() (ids []shim.ID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for id := range c.others {
		ids = append(ids, id)
	}
	c.checking = ids != nil
	return ids
}

// check looks after the claims of one task. before has the claims that were found dead
// the last time, now gets those that are.
func (c *courier) check(id shim.ID, before, now map[string]bool) {
	t, err := c.e.shim.Peek(c.ctx, c.p, c.e.name, id)
	if err != nil {
		if errors.Is(err, shim.ErrNotFound) {
			c.mu.Lock()
			delete(c.others, id)
			c.mu.Unlock()
		}
		return // otherwise it is looked again
	}
	waits, due := false, false
	for _, q := range t.Questions {
		if !q.Outstanding() || q.Claim == "" || q.Claim == c.name {
			continue
		}
		now[q.Claim] = now[q.Claim] || c.dead(c.ctx, q.Claim)
		if now[q.Claim] && before[q.Claim] {
			due = true
		} else {
			waits = true
		}
	}
	if due || !waits { // where nothing waits any more, look learns of it
		c.how(c, c.ctx, t)
	}
}

// past is what a stream goes on with: the questions in the log that its client resumes.
// It has them, or finds them there.
type past struct {
	stream string
	read   int64 // the log is known up to this message
	known  bool
}

// recall reads from the log which questions the client has. A claim alone does not say so:
// the replica that made it may have died before the question was in the log. c.mu is held.
func (c *courier) recall(ctx context.Context) error {
	_, _, err := c.s.table.store.Since(ctx, c.s.id, c.past.stream, c.past.read, func(no int64, message []byte) {
		c.past.read = no
		switch call, key, over, ok := readQuestion(message); {
		case over:
			delete(c.sent[call], key)
		case ok:
			c.mark(call, key)
		}
	})
	c.past.known = c.past.known || err == nil
	return err
}

// readQuestion reads of a message to a client which question it asks or, with over, takes
// back.
func readQuestion(message []byte) (call shim.ID, key string, over, ok bool) {
	method, ok := jsonrpc.GetString(message, "method")
	if !ok {
		return "", "", false, false
	}
	path := []string{"id"}
	if over = method == mcp.NotifyCancelled; over {
		path = []string{"params", "requestId"}
	}
	raw, _ := jsonrpc.Get(message, path...)
	id, err := jsonrpc.ParseID(raw)
	if err != nil {
		return "", "", false, false
	}
	call, key, ok = parseQuestionID(id)
	return call, key, over && ok, ok
}
