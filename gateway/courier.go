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

// storeAgain is after how long the store is asked again that was away.
const storeAgain = time.Second

// claimFree is a claim that is over.
const claimFree = "-"

// clientHas stands for a stream in the claim of a client that has a question from one that
// has ended with its answer. It answers the question all the same, and would take it for
// another one if it came again. To other sessions the claim is void: the client may have
// begun anew.
const clientHas = "has"

// line is how the messages of a courier go out. about names the question that a message
// asks or takes back.
type line struct {
	// ready has the log of the stream open, so that others find the stream alive before
	// they find its claims. Nil for one that is open.
	ready func(ctx context.Context) error
	ask   func(about string, message []byte) error
	over  func(about string, message []byte)
}

// courier delivers the questions of tasks on one stream.
type courier struct {
	e    *endpoint
	s    *session
	p    shim.Principal
	ctx  context.Context // of the stream
	name string          // in claims
	line line
	// how is how it looks at a task again by itself: look or lookLater.
	how func(*courier, context.Context, shim.Task)
	// work is what it does by itself. It is to be waited for when ctx has ended, and
	// nobody looks any more.
	work sync.WaitGroup
	// alone says that its questions are of no task.
	alone bool

	mu   sync.Mutex
	sent map[shim.ID]map[string]bool // by task, keys of those that the client may answer
	// claimed are the tasks of which this stream has claimed questions, sent or not.
	claimed map[shim.ID]bool
	past    *past // nil for a stream that resumes none
	over    bool
	// others are the tasks with questions that other streams have claimed; checking says
	// that it is looked whether those live.
	others   map[shim.ID]bool
	checking bool
}

// claimName names a stream of a session in claims.
func claimName(s *session, stream string) string { return s.id + " " + stream }

func newCourier(ctx context.Context, e *endpoint, s *session, p shim.Principal, stream string, l line) *courier {
	return &courier{
		e: e, s: s, p: p, ctx: ctx, name: claimName(s, stream), line: l, how: (*courier).look,
		sent: make(map[shim.ID]map[string]bool), claimed: make(map[shim.ID]bool), others: make(map[shim.ID]bool),
	}
}

// look delivers what a task asks and nobody delivers, and takes back what it no
// longer asks. While the store is away it is tried again: a task that does not change
// is not heard of again.
func (c *courier) look(ctx context.Context, t shim.Task) {
	for !c.deliver(ctx, t) && rest(ctx, storeAgain) {
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
	if c.past != nil && !c.past.known && c.recall(ctx) != nil {
		return false
	}
	c.takeBack(t)
	keys, over := c.wanted(ctx, t)
	c.watchOthers()
	if len(keys) == 0 {
		return true
	}
	if c.line.ready != nil && c.line.ready(ctx) != nil {
		return false
	}
	c.claimed[t.ID] = true // maybe, also if the reply is an error
	claimed, err := c.e.shim.Claim(ctx, c.p, c.e.name, t.ID, keys, c.name, over)
	if err != nil {
		return !errors.Is(err, shim.ErrUnavailable)
	}
	if c.past != nil && c.recall(ctx) != nil { // the one that had the claim may have asked until then
		return false
	}
	all := true
	for _, q := range claimed {
		if c.sent[t.ID][q.Key] {
			continue
		}
		if err := c.line.ask(questionName(t.ID, q.Key), questionRequest(t.ID, q, !c.alone)); err != nil {
			all = false // its client has gone, and it is given back; or it is tried again
			continue
		}
		c.mark(t.ID, q.Key)
	}
	return all
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
			c.line.over(questionName(t.ID, q.Key), questionOver(t.ID, q.Key))
		}
	}
	if t.Status.Final() {
		delete(c.sent, t.ID)
	}
}

// wanted are the open questions that this stream may claim, and the claims that are
// void for it. What others have claimed is noted.
func (c *courier) wanted(ctx context.Context, t shim.Task) (keys, over []string) {
	delete(c.others, t.ID)
	if t.Status.Final() {
		return nil, nil
	}
	able := shim.Session{Capabilities: answerable(c.s.current().Capabilities)}
	for _, q := range t.Questions {
		switch {
		case !q.Outstanding(), !upstream.MayAsk(able, q.Method, q.Params):
			continue
		case q.Claim == c.name && c.sent[t.ID][q.Key]:
			continue
		case q.Claim == claimName(c.s, clientHas):
			c.mark(t.ID, q.Key)
			continue
		case q.Claim == "", q.Claim == c.name:
		case q.Claim == claimFree, c.dead(ctx, q.Claim):
			over = append(over, q.Claim)
		default:
			c.others[t.ID] = true
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

// quit gives the open questions of one task back, for another stream: those that it has
// sent, and those that it could not send any more.
func (c *courier) quit(ctx context.Context, id shim.ID) {
	c.mu.Lock()
	c.over = true
	clear(c.others)
	claimed := c.claimed[id]
	c.mu.Unlock()
	for claimed {
		_, err := c.e.shim.Claim(ctx, c.p, c.e.name, id, nil, claimFree, []string{c.name})
		if !errors.Is(err, shim.ErrUnavailable) || !rest(ctx, storeAgain) {
			return // where it fails, the end of this stream's log frees them
		}
	}
}

// keep leaves the open questions of one task to the client when the stream ends with its
// answer.
func (c *courier) keep(id shim.ID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if keys := c.open(id); len(keys) > 0 && !c.over {
		ctx, done := context.WithTimeout(context.Background(), endTimeout)
		defer done()
		// Where it fails they are asked again.
		_, _ = c.e.shim.Claim(ctx, c.p, c.e.name, id, keys, claimName(c.s, clientHas), []string{c.name})
	}
}

// open are the keys of the questions of a task that the client may answer. c.mu is held.
func (c *courier) open(id shim.ID) (keys []string) {
	for key := range c.sent[id] {
		keys = append(keys, key)
	}
	return keys
}

// askOnResult delivers the questions of a task on the stream of a request that waits
// for its end, until the function it returns is called. A tasks/result leaves them to the
// GET stream first. That stream knows nothing of a task whose client was only told of it in
// words, so task_result (first) does not wait for it.
func (e *endpoint) askOnResult(ctx context.Context, q *legacyRequest, id shim.ID, first bool) (stop func()) {
	if !q.out.Streams() || answerable(q.state.Capabilities) == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	c := newCourier(ctx, e, q.s, q.principal, q.log.stream, q.line())
	if !first {
		c.how = (*courier).lookLater
	}
	q.log.asks(askNote{Task: id, First: first})
	left := context.AfterFunc(q.client, func() {
		// The client may resume the stream, and is asked there (askResumed). If it asks for
		// the result again instead, it is asked on that.
		q.s.table.outlive(func() { c.leave(id) })
	})
	following := c.follow(id)
	return func() {
		there := left()
		cancel()
		following.Wait()
		c.work.Wait()
		if there {
			c.keep(id)
		}
	}
}

// line is the stream of a request as a courier uses it. Its log is what others know it
// by.
func (q *legacyRequest) line() line {
	return line{
		ready: func(context.Context) error {
			q.log.begin()
			if !q.resumes() {
				return errors.New("the stream has no log")
			}
			return nil
		},
		ask:  func(_ string, m []byte) error { return q.out.Send(m) },
		over: func(_ string, m []byte) { _ = q.out.Send(m) },
	}
}

// follow looks at one task whenever it changes, until the courier's context ends.
func (c *courier) follow(id shim.ID) *sync.WaitGroup {
	var following sync.WaitGroup
	following.Go(func() {
		_ = c.e.shim.Follow(c.ctx, c.p, c.e.name, []shim.ID{id}, func(t shim.Task) error {
			c.how(c, c.ctx, t)
			return context.Cause(c.ctx)
		})
	})
	return &following
}

// leave is quit for a client that has gone, which nobody waits for.
func (c *courier) leave(id shim.ID) {
	ctx, done := context.WithTimeout(context.Background(), endTimeout)
	defer done()
	c.quit(ctx, id)
}

// lookLater is look for a stream that is not the first choice.
func (c *courier) lookLater(ctx context.Context, t shim.Task) {
	if c.wants(ctx, t) && (c.s.attached() || c.s.elsewhere(ctx)) {
		if !rest(ctx, getFirst) {
			return
		}
		switch now, err := c.e.shim.Peek(ctx, c.p, c.e.name, t.ID); {
		case err == nil:
			t = now
		case errors.Is(err, shim.ErrNotFound):
			return
		}
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
