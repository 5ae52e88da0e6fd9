package upstream

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"taskgate/gateway/upstream/forward"
	"taskgate/gateway/upstream/reading"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/internal/work"
	"taskgate/shim"
)

// A question on the GET stream of a session, or over stdio, names no call: it may be of any call, of another replica's,
// or of none. It belongs to the session until it is answered (design.md 0.18), and has a record of its own, from which
// resumeSessionQuestion brings the answer to the server. A legacy client with a GET stream of its own is asked there.
// Otherwise the calls of the session show it, one of them at a time.

// sessionQuestions are the session questions of one session, from when they are heard until they
// are answered. The session owns it.
type sessionQuestions struct {
	mu    sync.Mutex
	m     map[sessionQuestionKey]*sessionQuestion
	roots rootsQuestion
}

// rootsQuestion is the first question of a session for the roots of its client. A program asks it as soon as it hears that
// its client is ready, and the answer of a call may depend on it. A client calls a program that was started for its session
// at once where it does not know of the start: at another replica. So the first call waits for that question, as clients
// do by themselves after a start of their own.
type rootsQuestion struct {
	key     sessionQuestionKey
	greeted atomic.Bool   // the client itself has begun the session here
	asked   chan struct{} // closed with the question
	settled chan struct{} // closed with its answer
}

const (
	rootsSoon  = 300 * time.Millisecond // after which a program that has not asked is not waited for
	rootsTaken = 2 * time.Second        // how long an answer is waited for
)

// noteRoots notes a question that was opened.
func (l *sessionQuestions) noteRoots(k sessionQuestionKey) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !work.IsClosed(l.roots.asked) {
		l.roots.key = k
		close(l.roots.asked)
	}
}

// awaitRoots waits, in a session that is a program, until the server has the roots of its client, if it asks for them.
func (s *session) awaitRoots(ctx context.Context) {
	r := &s.questions.roots
	passed := time.Since(time.Unix(0, s.readyAt.Load()))
	if r.greeted.Load() || s.t.wire.cfg.Transport == nil || !s.from.Shared || passed >= rootsSoon || work.IsClosed(r.settled) || !hasRoots(s.from) {
		return
	}
	// The question wakes it, and then its answer.
	if work.PauseFor(ctx, r.asked, rootsSoon-passed) == nil && work.IsClosed(r.asked) {
		_ = work.PauseFor(ctx, r.settled, rootsTaken)
	}
}

// hasRoots reports whether a client has declared that it can be asked for its roots.
func hasRoots(client shim.Session) bool {
	roots, _ := jsonrpc.Get(client.Capabilities, "roots")
	return jsonrpc.IsObject(roots)
}

// sessionQuestionKey names a session question: a server may use an id again in its next session.
type sessionQuestionKey struct{ session, id string }

// sessionQuestion is a session question, and a context that ends when the server withdraws it.
type sessionQuestion struct {
	context.Context
	withdraw context.CancelCauseFunc
	key      sessionQuestionKey
}

// maxSessionQuestions bounds the session questions of one session, which the limits of calls leave
// out.
const maxSessionQuestions = 64

// maxWaiting bounds the session questions of one server that wait until their clients can be asked, in bytes of params.
// After that they have records, which have bounds of their own.
const maxWaiting = 16 << 20

// openQuestion returns the entry of a question, which may be new; nil if there are too many.
func (l *sessionQuestions) openQuestion(k sessionQuestionKey) *sessionQuestion {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.m[k] == nil && len(l.m) < maxSessionQuestions {
		ctx, withdraw := context.WithCancelCause(context.Background())
		l.m[k] = &sessionQuestion{ctx, withdraw, k}
	}
	return l.m[k]
}

// withdrawQuestion ends the context of a question that the server has withdrawn.
func (l *sessionQuestions) withdrawQuestion(k sessionQuestionKey) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if q := l.m[k]; q != nil {
		q.withdraw(errWithdrawn)
	}
}

// forgetQuestion drops a question, and reports whether the server has withdrawn it.
func (l *sessionQuestions) forgetQuestion(k sessionQuestionKey) (withdrawn bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	q := l.m[k]
	delete(l.m, k)
	if k == l.roots.key && work.IsClosed(l.roots.asked) && !work.IsClosed(l.roots.settled) {
		close(l.roots.settled)
	}
	return q != nil && q.Err() != nil
}

// askClient puts a question to the client of the session, or refuses it.
func (s *session) askClient(ctx context.Context, to target, q *sessionQuestion, m jsonrpc.Message) {
	c := to.beginCheckpoint(s.t.wire.nextID(to))
	c.Asked, c.SessionQuestion = 1, true
	c.Pending = []pending{{ID: []byte(m.ID.Raw()), Key: c.ID + "-q1", Method: m.Method, Params: m.Params, OnGET: true}}
	err := s.putQuestion(ctx, q, c, m)
	if err == nil || s.questions.forgetQuestion(q.key) { // resumeSessionQuestion has taken the question over, or the server has withdrawn it
		return
	}
	refusal := notPut(m.ID, "the client could not be asked")
	if why, ok := errors.AsType[*jsonrpc.Error](err); ok {
		refusal = jsonrpc.AppendError(nil, m.ID, why)
	} else if errors.Is(err, shim.ErrNoAsk) {
		refusal = refusalOf(m.ID, mcp.CodeMethodNotFound, m.Method+" outside of a call")
	}
	s.t.wire.log.Debug("a question outside of any call was not put to its client", "err", err)
	s.t.wire.answerSessionQuestion(ctx, to, refusal)
}

// holdFor is how long questions are held after the server was told that its client is ready: the
// client may be about to open the stream on which it is asked.
const holdFor = 10 * time.Second

// putQuestion puts a question to the client once the client can be asked: on its own stream, or by the calls in flight.
// A *jsonrpc.Error says why none of these may ask it.
func (s *session) putQuestion(ctx context.Context, q *sessionQuestion, c checkpoint, m jsonrpc.Message) error {
	ask := func() error {
		return (*s.t.askSession.Load())(ctx, s.from, questionsOf(c.Pending)[0], c.encodeCheckpoint(), c.OnCalls)
	}
	for pause := 10 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		err := shim.ErrNoAsk
		if c.OnCalls = false; s.from.Shared {
			err = ask()
		}
		if errors.Is(err, shim.ErrNoAsk) && len(s.calls.newestFirst()) > 0 {
			if refused := s.calls.refuseAll(m); refused != nil {
				return refused
			}
			c.OnCalls = true
			if err = ask(); err != nil && s.calls.askCall(m) == nil { // the store is away: the newest call has it
				s.questions.forgetQuestion(q.key)
				return nil
			}
		}
		held := errors.Is(err, shim.ErrNoAsk) && time.Since(time.Unix(0, s.readyAt.Load())) < holdFor
		// Nothing wakes it early: it looks again after each pause.
		if !held || !s.from.Shared || q.Err() != nil || work.Pause(ctx, pause) != nil {
			return err
		}
	}
}

// resumeSessionQuestion goes on with a session question: it asks, and posts the answer.
func (t *sessionTable) resumeSessionQuestion(ctx context.Context, r shim.Request, c checkpoint, sink shim.Sink) (shim.Reply, error) {
	s, l := t.adoptSession(ctx, r.Session, c.generationOf())
	defer s.releaseSession()
	p := c.Pending[0]
	ask, withdraw := context.WithCancelCause(ctx)
	defer withdraw(nil)
	s.calls.claimRequest(p.requestID())
	k := sessionQuestionKey{c.Session, p.requestID().Key()}
	if q := s.questions.openQuestion(k); q != nil {
		context.AfterFunc(q, func() { withdraw(errWithdrawn) })
	}
	defer s.questions.forgetQuestion(k)
	if err := forward.Represented(ctx, r.Session); err != nil {
		return shim.Reply{}, err
	}
	defer s.calls.allowSilence()()
	var showing sync.WaitGroup
	var told []shim.Answer
	if of, ok := sink.(recorded); ok && c.OnCalls {
		shows := p
		shows.Key, shows.Shown = shim.ShownKey(of.RecordID(), p.Key), true
		showing.Go(func() {
			s.calls.showUntilEnd(ask, shows, func(a shim.Answer) {
				told = []shim.Answer{a}
				withdraw(nil)
			})
		})
	}
	answers, err := sink.Ask(ask, questionsOf(c.Pending)...)
	gone := context.Cause(ask) == errWithdrawn
	withdraw(nil)
	if showing.Wait(); err != nil && told != nil {
		answers, err = told, nil
	}
	switch {
	case err != nil && isDetached(ctx):
		s.retainSession()
		return shim.Reply{}, context.Cause(ctx)
	case gone:
		return shim.Reply{Result: json.RawMessage(`{}`)}, nil
	}
	t.wire.answerSessionQuestion(forward.For(ctx, forward.Brought), l.target, responseTo(p, answers, 0, err))
	if err := causeOf(ctx); err != nil {
		return shim.Reply{}, err
	}
	return shim.Reply{Result: json.RawMessage(`{}`)}, nil
}

// recorded is a sink of a call that has a record.
type recorded interface{ RecordID() shim.ID }

// answerSessionQuestion posts the answer to a session question. Only the server waits for it.
func (w *wire) answerSessionQuestion(ctx context.Context, to target, body []byte) {
	most := w.cfg.StartTimeout
	if ctx.Err() != nil {
		most = cancelTimeout
	}
	ctx, stop := outliveCaller(ctx, most)
	defer stop()
	err := forward.Ready(ctx)
	if err == nil {
		err = w.postAnswer(ctx, ctx, to, body)
	}
	if err != nil {
		w.log.Debug("answer to the server was not delivered", "err", err)
	}
}

// routeQuestion puts a question that names no call to the client of the session. One that names a task goes to the call
// with that task, and so does any in the session of one call. It returns the response to a question that is refused.
func (s *session) routeQuestion(ctx context.Context, x *exchange, m jsonrpc.Message) (refusal []byte) {
	noteAsksRoots(ctx, s, m)
	named, _ := jsonrpc.GetString(m.Params, "_meta", mcp.MetaRelatedTask, "taskId")
	s.mu.Lock()
	alone := s.ends || s.t.askSession.Load() == nil // it ends with its call
	s.mu.Unlock()
	if alone || named != "" {
		refused := s.calls.askCall(m)
		if refused == nil {
			return nil
		}
		if refused.Code == mcp.CodeInternal || alone || !s.from.Shared {
			return jsonrpc.AppendError(nil, m.ID, refused) // a call here asks too much, or the client is missing
		}
	}
	if code, ok := reading.CheckAsked(s.from, m.Method, m.Params); !ok {
		return refusalOf(m.ID, code, m.Method)
	}
	q := s.questions.openQuestion(sessionQuestionKey{x.to.session, m.ID.Key()})
	if q == nil {
		return notPut(m.ID, "too many questions wait that belong to no call")
	}
	if m.Method == mcp.MethodRootsList {
		s.questions.noteRoots(q.key)
	}
	if refused := askApart(ctx, s, x.to, q, m); refused != "" {
		s.questions.forgetQuestion(q.key)
		return notPut(m.ID, refused)
	}
	return nil
}

// askApart has askClient run on its own. It returns why it does not.
func askApart(ctx context.Context, s *session, to target, q *sessionQuestion, m jsonrpc.Message) (refused string) {
	t, size := s.t, int64(len(m.Params))
	if t.waiting.Add(size) > maxWaiting {
		t.waiting.Add(-size)
		return "too large a question, or too many wait that belong to no call"
	}
	m.Params = bytes.Clone(m.Params)
	s.pinSession()
	end := func() {
		s.releaseSession()
		t.waiting.Add(-size)
	}
	if !t.work.Go(ctx, func(ctx context.Context) {
		defer end()
		s.askClient(ctx, to, q, m)
	}) {
		end()
		return "the gateway is shutting down"
	}
	return ""
}

// noteAsksRoots notes that the server has asked for roots while no call ran.
func noteAsksRoots(ctx context.Context, s *session, m jsonrpc.Message) {
	l := s.currentGeneration()
	if m.Method != mcp.MethodRootsList || l == nil || len(l.server.Info) == 0 || len(s.calls.newestFirst()) > 0 {
		return
	}
	key := rootsKey(l.server)
	if s.t.memory.roots.note(key, true) {
		s.t.work.Go(ctx, func(ctx context.Context) { s.t.storeRoots(ctx, key, true) })
	}
}

// storeRoots tells the other replicas of the verdict. That the server asks is never taken back.
func (t *sessionTable) storeRoots(ctx context.Context, key string, asks bool) {
	if t.wire.cfg.Sessions == nil {
		return
	}
	text := rootsUnasked
	if asks {
		text = rootsAsked
	}
	for {
		state, rev, err := t.wire.cfg.Sessions.Load(ctx, key)
		if err == nil && string(state) != text && string(state) != rootsAsked {
			rev, err = t.wire.cfg.Sessions.Swap(ctx, key, rev, []byte(text))
			if err == nil && rev == 0 {
				continue // another replica was faster
			}
		}
		if err != nil {
			t.wire.log.Debug("what is known of the server's question for roots was not stored", "err", err)
		}
		return
	}
}

// withdrawQuestion withdraws one of the server's requests, in the session of that id.
func (s *session) withdrawQuestion(session string, params []byte) {
	raw, _ := jsonrpc.Get(params, "requestId")
	s.calls.passCancellation(raw) // a session question is withdrawn from the call that shows it, and itself
	if id, err := jsonrpc.ParseID(raw); err == nil {
		s.questions.withdrawQuestion(sessionQuestionKey{session, id.Key()})
	}
}

// SessionAsker puts a session question to the client that a session belongs to. The checkpoint
// holds all that is needed to bring the answer back: the replica that takes the question on
// continues from it (ServerClient.Resume). With onCalls the calls of the session show it. An error says that the question was
// refused; shim.ErrNoAsk, that this client has no stream of its own on which it can be asked now.
type SessionAsker func(ctx context.Context, s shim.Session, q shim.Question, checkpoint json.RawMessage, onCalls bool) error
