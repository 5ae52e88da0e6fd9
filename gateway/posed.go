package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"time"

	"taskgate/gateway/upstream"
	"taskgate/shim"
	"taskgate/shim/dialect"
)

// A legacy server may ask outside of any call (design.md 0.16). In the session of a
// legacy client that one is asked, on its GET stream, wherever that is: the question has
// a record like any other, the state of the session names it, and the stream delivers it
// as it does those of tasks.

// mostPosed is how many such questions of a session may be open at a time.
const mostPosed = 16

// posedWord tells the replica that has a session's stream of new ones.
const posedWord = "posed"

// errManyPosed: the client has been asked enough.
var errManyPosed = errors.New("too many questions of this session are open")

// pose asks the client of a session what its server asks outside of any call. One that
// has no GET stream open, and none that it may come back to, is not there to be asked:
// shim.ErrNoAsk.
func (e *endpoint) pose(ctx context.Context, from shim.Session, q shim.Question, checkpoint json.RawMessage) error {
	s := e.gateway.sessions.pin(from.Key)
	st, err := s.load(ctx)
	switch able := (shim.Session{Capabilities: answerable(st.Capabilities)}); {
	case errors.Is(err, errNoSession):
		err = shim.ErrNoAsk
	case err != nil:
	case st.Upstream != e.name, !upstream.MayAsk(able, q.Method, q.Params):
		err = shim.ErrNoAsk
	case !s.attached() && !s.listen.active() && !s.elsewhere(ctx):
		err = shim.ErrNoAsk
	case len(st.Posed) >= mostPosed:
		err = errManyPosed
	}
	if err != nil {
		s.release()
		return err
	}
	life, end := context.WithCancelCause(s.ctx) // and not that of the request of the server
	c := shim.Call{
		Upstream: e.name, Principal: s.principal(shim.Principal{Subject: st.Owner}), Origin: dialect.OriginLegacy,
		Request: shim.Request{Method: q.Method, Session: s.upstream()}, Asking: shim.AskStream,
	}
	id, err := e.shim.Pose(life, c, checkpoint, func(id shim.ID, over bool) {
		if over {
			s.settlePosed(id)
		}
		end(nil)
		s.release()
	})
	if err != nil {
		end(nil)
		s.release()
		return err
	}
	if err := s.update(ctx, func(st sessionState) sessionState { return st.withPosed([]shim.ID{id}, nil) }); err != nil {
		end(shim.ErrCancelled) // no stream would ask it; this answers the server
		return nil
	}
	if s.posed.ring(); !s.attached() {
		_ = s.table.store.Signal(ctx, s.id, posedWord) // who has the stream looks by itself, too
	}
	return nil
}

// withPosed returns the state with questions added, and without those that are over. The
// list of the old state is not changed: others may read it.
func (st sessionState) withPosed(made, over []shim.ID) sessionState {
	ids := append(slices.Clone(st.Posed), made...)
	st.Posed = slices.DeleteFunc(ids, func(id shim.ID) bool { return slices.Contains(over, id) })
	return st
}

// settlePosed forgets questions that are over.
func (s *session) settlePosed(ids ...shim.ID) {
	ctx, cancel := context.WithTimeout(context.Background(), endTimeout)
	defer cancel()
	// Where it fails, the session ends or the next stream finds that they are over.
	_ = s.update(ctx, func(st sessionState) sessionState { return st.withPosed(nil, ids) })
}

// askPosed delivers, on the session's GET stream, what its server asks outside of any
// call, until the function that it returns is called.
func (e *endpoint) askPosed(ctx context.Context, g *standing, p shim.Principal) (stop func()) {
	s := g.s
	if answerable(s.current().Capabilities) == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	c := newCourier(ctx, e, s, s.principal(p), standingStream, s.line())
	c.alone = true
	if g.past != nil {
		past := *g.past // each reads the log for itself
		c.past = &past
	}
	var running sync.WaitGroup
	running.Go(func() { c.runPosed(ctx) })
	return func() {
		cancel()
		running.Wait()
		c.work.Wait()
		s.out.forgetRequests()
	}
}

// runPosed follows the questions that the session has, and begins anew with each time
// that it has more.
func (c *courier) runPosed(ctx context.Context) {
	for {
		ids := c.s.current().Posed
		following, cancel := context.WithCancel(ctx)
		var running sync.WaitGroup
		if len(ids) > 0 {
			running.Go(func() {
				err := c.e.shim.FollowPosed(following, c.p, c.e.name, ids, func(t shim.Task) error {
					c.look(following, t)
					return context.Cause(following)
				})
				if err == nil {
					c.s.settlePosed(ids...) // those that nobody runs any more, too
				}
			})
		}
		more := c.morePosed(ctx, ids)
		cancel()
		running.Wait()
		if !more {
			return
		}
	}
}

// morePosed waits until the session has questions besides those that are followed. A
// word of another replica may be lost, so the state is read again from time to time.
func (c *courier) morePosed(ctx context.Context, followed []shim.ID) bool {
	check := time.NewTicker(tellCheck)
	defer check.Stop()
	for {
		st, err := c.s.load(ctx)
		if err == nil && slices.ContainsFunc(st.Posed, func(id shim.ID) bool { return !slices.Contains(followed, id) }) {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-c.s.posed:
		case <-check.C:
		}
	}
}
