package gateway

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"taskgate/gateway/upstream"
	"taskgate/shim"
)

// A task's questions are delivered by one stream of a legacy session: by its GET
// stream, if there is one, and by a tasks/result otherwise (L32, protocol.md C 3).
// Streams agree by a claim in the store. A claim names its stream, and the log of
// that says whether it still lives; a question whose stream has died is delivered
// again, under the same id (H7).

// getFirst is how long a tasks/result leaves questions to the session's GET stream.
const getFirst = 2 * time.Second

// claimAgain is after how long a claim is tried again that the store was not there for.
const claimAgain = time.Second

// claimFree is a claim that is over.
const claimFree = "-"

// courier delivers the questions of tasks on one stream.
type courier struct {
	e    *endpoint
	s    *session
	p    shim.Principal
	name string // in claims
	send func(message []byte) error
	// known are questions that were claimed under this name and need not be sent:
	// the client resumes the stream that had them.
	known bool

	mu   sync.Mutex
	sent map[shim.ID]map[string]bool // by task, keys of those that the client may answer
	over bool
}

// claimName names a stream of a session in claims.
func claimName(s *session, stream string) string { return s.id + " " + stream }

func newCourier(e *endpoint, s *session, p shim.Principal, stream string, send func([]byte) error) *courier {
	return &courier{e: e, s: s, p: p, name: claimName(s, stream), send: send, sent: make(map[shim.ID]map[string]bool)}
}

// look delivers what a task asks and nobody delivers, and takes back what it no
// longer asks. While the store is away it is tried again: a task that does not change
// is not heard of again.
func (c *courier) look(ctx context.Context, t shim.Task) {
	for !c.deliver(ctx, t) && rest(ctx, claimAgain) {
		continue
	}
}

// deliver is one attempt, and reports whether it is the last one needed.
func (c *courier) deliver(ctx context.Context, t shim.Task) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over {
		return true
	}
	c.takeBack(t)
	keys, over := c.wanted(ctx, t)
	if len(keys) == 0 {
		return true
	}
	claimed, err := c.e.shim.Claim(ctx, c.p, c.e.name, t.ID, keys, c.name, over)
	if err != nil {
		return !errors.Is(err, shim.ErrUnavailable)
	}
	for _, q := range claimed {
		if !c.sent[t.ID][q.Key] && c.send(questionRequest(t.ID, q, true)) == nil {
			c.mark(t.ID, q.Key)
		}
	}
	return true
}

// mark notes that the client has a question. c.mu is held.
func (c *courier) mark(id shim.ID, key string) {
	if c.sent[id] == nil {
		c.sent[id] = make(map[string]bool)
	}
	c.sent[id][key] = true
}

// takeBack tells the client of questions that were sent and have no answer, and want
// none any more.
func (c *courier) takeBack(t shim.Task) {
	for _, q := range t.Questions {
		if !c.sent[t.ID][q.Key] || q.Outstanding() && !t.Status.Final() {
			continue
		}
		delete(c.sent[t.ID], q.Key)
		if q.Answer == nil {
			_ = c.send(questionOver(t.ID, q.Key))
		}
	}
	if t.Status.Final() {
		delete(c.sent, t.ID)
	}
}

// wanted are the open questions that this stream may claim, and the claims that are
// void for it.
func (c *courier) wanted(ctx context.Context, t shim.Task) (keys, over []string) {
	if t.Status.Final() {
		return nil, nil
	}
	able := shim.Session{Capabilities: answerable(c.s.current().Capabilities)}
	for _, q := range t.Questions {
		switch {
		case !q.Outstanding(), c.sent[t.ID][q.Key], !upstream.MayAsk(able, q.Method, q.Params):
			continue
		case q.Claim == c.name && c.known:
			c.mark(t.ID, q.Key)
			continue
		case q.Claim == "", q.Claim == c.name:
		case q.Claim == claimFree, c.dead(ctx, q.Claim):
			over = append(over, q.Claim)
		default:
			continue
		}
		keys = append(keys, q.Key)
	}
	return keys, over
}

// dead reports whether the stream that a claim names is gone, with its replica or by
// itself. While that cannot be learned, it is not.
func (c *courier) dead(ctx context.Context, claim string) bool {
	session, stream, ok := strings.Cut(claim, " ")
	if !ok {
		return true // of no stream
	}
	state, _, err := c.s.table.stateOf(ctx, session, stream)
	return err == nil && state != "open"
}

// quit gives the open questions of one task back, for another stream.
func (c *courier) quit(ctx context.Context, id shim.ID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over = true
	var keys []string
	for key := range c.sent[id] {
		keys = append(keys, key)
	}
	if len(keys) > 0 {
		// Where it fails, the end of this stream's log frees them.
		_, _ = c.e.shim.Claim(ctx, c.p, c.e.name, id, keys, claimFree, []string{c.name})
	}
}

// askOnResult delivers the questions of a task on the stream of a request that waits
// for its end, until the function it returns is called. look is how: a tasks/result
// leaves them to the GET stream first (lookLater). That stream knows nothing of a task
// whose client was only told of it in words, so task_result does not wait for it.
func (e *endpoint) askOnResult(ctx context.Context, q *legacyRequest, id shim.ID, look func(*courier, context.Context, shim.Task)) (stop func()) {
	if q.log == nil || !q.out.Streams() || answerable(q.state.Capabilities) == nil {
		return func() {}
	}
	c := newCourier(e, q.s, q.principal, q.log.stream, func(m []byte) error {
		q.log.begin() // the log is what others know the stream by
		if !q.resumes() {
			return errors.New("the stream has no log")
		}
		return q.out.Send(m)
	})
	ctx, cancel := context.WithCancel(ctx)
	left := context.AfterFunc(q.client, func() {
		// The client may resume the stream, and has the questions then. If it asks for
		// the result again instead, they are asked there.
		q.s.table.outlive(func() {
			free, done := context.WithTimeout(context.Background(), endTimeout)
			defer done()
			c.quit(free, id)
		})
	})
	var following sync.WaitGroup
	following.Go(func() {
		_ = e.shim.Follow(ctx, q.principal, e.name, []shim.ID{id}, func(t shim.Task) error {
			look(c, ctx, t)
			return context.Cause(ctx)
		})
	})
	return func() {
		left()
		cancel()
		following.Wait()
	}
}

// lookLater is look for a stream that is not the first choice.
func (c *courier) lookLater(ctx context.Context, t shim.Task) {
	if c.wants(ctx, t) && (c.s.attached() || c.s.elsewhere(ctx)) {
		if !rest(ctx, getFirst) {
			return
		}
		now, err := c.e.shim.Peek(ctx, c.p, c.e.name, t.ID)
		if err != nil {
			return // it is gone, or read again before long
		}
		t = now
	}
	c.look(ctx, t)
}

// wants reports whether there is a question that this stream may claim.
func (c *courier) wants(ctx context.Context, t shim.Task) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	keys, _ := c.wanted(ctx, t)
	return len(keys) > 0
}
