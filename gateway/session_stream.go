package gateway

import (
	"context"
	"crypto/rand"
	"errors"
	"math"
	"time"

	"taskgate/internal/eventstream"
	"taskgate/internal/mcp"
	"taskgate/shim"
)

const (
	// standingStream names the log of a session's GET stream.
	standingStream = "get"
	// streamWord says that the GET stream may have moved to another replica.
	streamWord = "stream"
	// listenWord begins the word that there is more to listen for where the stream
	// is, heardWord its answer once that is so.
	listenWord = "listen "
	heardWord  = "heard "
	// mostAsked bounds how many words of other replicas a session remembers to have
	// answered. More than that are not kept in the store at a time.
	mostAsked = 256
)

// errMoved: the session's GET stream is at another replica.
var errMoved = errors.New("the session has a stream already")

// standing is a session's GET stream while this replica has it. Replicas agree in the
// store on which of them that is: the note of its log names it. It alone listens
// upstream, and what another one has heard before it learned of that goes into the log
// for it.
type standing struct {
	s       *session
	out     *eventstream.Writer
	no      int64 // of the last message of the log that was sent
	kept    bool  // messages go through the log, and have ids
	behind  bool  // the log may have more
	logless bool  // the store was away when the stream began
	resumed bool  // the client has been on a stream before, and says how far it came
	moved   bool
	count   *counting // of what the client counts; nil where it counts nothing
	past    *past     // what its client was asked before; nil where it has nothing of that
	replay  *replay   // of what is in the log already; nil once that has been sent
}

// elsewhere reports whether another replica has the session's GET stream.
func (s *session) elsewhere(ctx context.Context) bool {
	state, note, err := s.table.stateOf(ctx, s.id, standingStream)
	return err == nil && state == "open" && string(note) != s.table.name
}

// stateOf tells what has become of a stream of any session, without its messages; see
// Logs.Since.
func (t *sessionTable) stateOf(ctx context.Context, id, stream string) (state string, note []byte, err error) {
	return t.store.Since(ctx, id, stream, math.MaxInt64, func(int64, []byte) {})
}

// claim makes this replica the one that has the session's GET stream. A client that
// resumes it takes it along; any other finds it taken. counts says that the client
// counts some of what it gets.
func (s *session) claim(ctx context.Context, no int64, resumes, counts bool) (*standing, error) {
	if !resumes && s.elsewhere(ctx) {
		return nil, errMoved
	}
	g := &standing{s: s, no: no, behind: resumes, resumed: resumes}
	if resumes {
		g.past = &past{stream: standingStream}
	}
	var last int64
	var err error
	if counts {
		g.count, err = s.count(ctx, no, resumes)
	}
	if err == nil {
		last, err = s.table.store.Open(ctx, s.id, standingStream, []byte(s.table.name))
	}
	if err == nil && counts && !resumes {
		last, err = s.table.store.Append(ctx, s.id, standingStream, anewMark)
	}
	if err == nil {
		err = s.table.store.Signal(ctx, s.id, streamWord)
	}
	if err != nil {
		g.logless = true // it is open all the same, as long as the store is away
		return g, nil
	}
	g.count.floor(last)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case resumes:
	case s.unsent > 0: // the stream before it was here, and broke
		g.no, g.behind = s.unsent-1, true
		g.past = &past{stream: standingStream, read: g.no}
	default:
		g.no = last
	}
	return g, nil
}

// leave gives the stream up, which ends its log unless another replica has it by now. That
// the log could not be opened may only have been the reply that was lost.
func (g *standing) leave() {
	g.s.mu.Lock()
	g.s.unsent = 0
	if g.kept && !g.moved {
		g.s.unsent = g.no + 1
	}
	g.s.mu.Unlock()
	if g.moved {
		return
	}
	g.s.table.finishLog(g.s.id, standingStream, nil)
}

// keep has messages go through the log from now on: the stream has been open for long
// enough that its client may want to resume it (design.md 0.17).
func (g *standing) keep(prime bool) {
	if g.logless || g.kept {
		return
	}
	g.kept = true
	if prime {
		_ = g.out.Prime(eventID(standingStream, g.no), resumeRetry) // its error is in out
	}
}

// flush sends all that waits, here and in the log. A message that could not be sent
// waits for the next stream.
func (g *standing) flush(ctx context.Context) error {
	for {
		if err := g.catchUp(ctx); err != nil {
			return err
		}
		more, err := g.sendBurst(ctx)
		if err != nil {
			return err
		}
		if !more {
			return g.out.Err()
		}
	}
}

// burst is how many messages go into the log before it is read.
const burst = 32

// sendBurst sends what waits here, or puts it into the log, and reports whether there
// was anything.
func (g *standing) sendBurst(ctx context.Context) (some bool, err error) {
	for range burst {
		msg, ok := g.s.out.take()
		if !ok {
			return some, nil
		}
		if some = true; g.log(ctx, msg) {
			g.behind = true
			msg.out()
			continue
		}
		// What a client that begins anew counts needs no log: it will begin anew again.
		if err = errNoLog; !msg.numbered || g.logless && !g.resumed {
			err = g.catchUp(ctx) // what came before it comes first
		}
		if err == nil {
			err = g.out.Send("", msg.text)
		}
		if err != nil {
			g.s.out.giveBack(msg)
			return true, err
		}
		msg.out()
	}
	return some, nil
}

// errNoLog ends a stream on which a message cannot go out for want of the log.
var errNoLog = errors.New("the log of the stream is not available")

// log puts a message into the log of the stream, if that has one. A question has it have
// one: whoever goes on with the stream learns there what its client was asked.
func (g *standing) log(ctx context.Context, msg waiting) bool {
	if (msg.numbered || msg.kept) && !g.kept {
		g.keep(mcp.LookupVersion(g.s.current().Version).Priming)
	}
	if !g.kept {
		return false
	}
	no, err := g.s.table.store.Append(ctx, g.s.id, standingStream, msg.text)
	g.behind = g.behind || err == nil && no == 0 // another replica has taken it, and ended it
	return err == nil && no != 0
}

// catchUp sends what the log has more, and looks whether the stream is still here.
func (g *standing) catchUp(ctx context.Context) error {
	if !g.behind || g.logless {
		return nil
	}
	g.behind = false
	more, state, note, err := g.s.logged(ctx, standingStream, g.no)
	if err == nil && state != "" && string(note) != g.s.table.name {
		g.moved = true // what is in the log is the other one's to send
		return errMoved
	}
	for _, m := range more {
		if len(m.message) == 0 || g.replay != nil && g.replay.stale(ctx, m.message) || !g.count.due(m.no, m.message) ||
			g.out.Send(eventID(standingStream, m.no), m.message) == nil {
			g.no = m.no
		}
	}
	if err == nil {
		g.replay = nil
	}
	switch {
	case err != nil:
		return g.out.Err() // the store is away: it is looked again
	case state == "": // the store has lost it
		_, _ = g.s.table.store.Open(ctx, g.s.id, standingStream, []byte(g.s.table.name))
	}
	return g.out.Err()
}

// moved runs when another replica may have taken the GET stream: then this one ends
// its own, stops listening, and leaves in the log what the client has not been sent.
func (s *session) moved(ctx context.Context) {
	if !s.elsewhere(ctx) || !s.endStream(ctx, s.elsewhere) {
		return
	}
	s.listen.drop()
	for msg, ok := s.out.take(); ok; msg, ok = s.out.take() {
		if no, err := s.table.store.Append(ctx, s.id, standingStream, msg.text); err != nil || no == 0 {
			s.out.giveBack(msg) // for a stream that comes here
			break
		}
	}
	s.table.reap(s)
}

// endPause is how long it takes a GET stream at most to begin, and so to be one that
// can be ended.
const endPause = 50 * time.Millisecond

// endStream ends the GET stream of this replica, if there is one, and waits until it
// is over. It reports false, and ends nothing, where a stream that has begun is not to be
// ended: it may have come here while that was found out.
func (s *session) endStream(ctx context.Context, ends func(context.Context) bool) bool {
	for s.attached() && ctx.Err() == nil {
		s.mu.Lock()
		end, gone := s.streamEnd, s.streamGone
		s.mu.Unlock()
		if end != nil {
			if !ends(ctx) {
				return false
			}
			end()
		}
		pause := time.NewTimer(endPause)
		select {
		case <-gone:
		case <-pause.C:
		case <-ctx.Done():
		}
		pause.Stop()
	}
	return true
}

// mayEnd says how the GET stream of this replica is ended.
func (s *session) mayEnd(end context.CancelFunc) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.streamEnd = end
}

// takeOver is attach for a client that resumes the stream: the one that it has lost
// may not have been noticed yet.
func (s *session) takeOver(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, logTimeout)
	defer cancel()
	for ctx.Err() == nil {
		if s.attach() {
			return true
		}
		s.endStream(ctx, func(context.Context) bool { return true })
	}
	return false
}

// hear listens for what the session wants to hear now, where its GET stream is. Where
// that is another replica, what the upstream agreed to is not known here.
func (s *session) hear(ctx context.Context, leg Leg) (agreed shim.Filter, here bool) {
	if !s.attached() && s.elsewhere(ctx) {
		s.ask(ctx)
		return shim.Filter{}, false
	}
	return s.follow(ctx, leg), true
}

// ask has the replica with the GET stream listen for what the session wants to hear
// now, and waits until it does, as follow does: what happens upstream from then on
// reaches the client.
func (s *session) ask(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, listenReady)
	defer cancel()
	question, heard := rand.Text(), make(chan struct{})
	s.mu.Lock()
	if s.asks == nil {
		s.asks = make(map[string]chan struct{})
	}
	s.asks[question] = heard
	s.mu.Unlock()
	if s.table.store.Signal(ctx, s.id, listenWord+question) == nil {
		select {
		case <-heard:
		case <-ctx.Done():
		}
	}
	s.mu.Lock()
	delete(s.asks, question)
	s.mu.Unlock()
}

// heard takes the answer to ask. Words may come more than once.
func (s *session) heard(question string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c, ok := s.asks[question]; ok {
		close(c)
		delete(s.asks, question)
	}
}

// again runs when another replica asks for what it has changed to be listened for. It
// answers once: an answer has every replica read all words again.
func (s *session) again(ctx context.Context, question string) {
	s.mu.Lock()
	leg, known := s.leg, s.answered[question]
	if s.answered == nil || len(s.answered) >= mostAsked {
		s.answered = make(map[string]bool)
	}
	s.answered[question] = true
	s.mu.Unlock()
	if known || leg == nil || !s.attached() {
		return
	}
	if _, err := s.load(ctx); err == nil {
		s.follow(ctx, leg)
		_ = s.table.store.Signal(ctx, s.id, heardWord+question) // who asked waits for it only so long
	}
}

// watch reports on wake whenever the log of the session may have more, until the
// function it returns is called.
func (s *session) watch(ctx context.Context) (wake <-chan struct{}, stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	woken, done := make(chan struct{}, 1), make(chan struct{})
	go func() { // ends with ctx
		defer close(done)
		s.table.store.Watch(ctx, s.id, func() {
			select {
			case woken <- struct{}{}:
			default:
			}
		})
	}()
	return woken, func() {
		cancel()
		<-done
	}
}

// aside runs what a word of another replica asks for.
func (t *sessionTable) aside(s *session, f func(*session, context.Context)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return
	}
	s.pins++ // it is not forgotten meanwhile, and not in use by that
	if s.pins == 1 {
		s.since = time.Now()
	}
	t.work.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), endTimeout)
		defer cancel()
		f(s, ctx)
		t.unpin(s)
	})
}
