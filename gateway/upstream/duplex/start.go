package duplex

import (
	"context"
	"errors"
	"fmt"
	"time"

	"taskgate/gateway/upstream/transport"
	"taskgate/shim"
)

// busyPause is when a caller that found all servers in use may come back.
const busyPause = time.Second

// starts is what is known of the starts of one owner.
type starts struct {
	failures int       // in a row: servers that ended soon
	again    time.Time // until then no server is opened
	why      *Exit     // of the latest failure
	served   bool      // that server had served
}

// shareOf returns the server that the modern requests of an owner share. The first request opens it, and the
// others wait for that.
func (t *Transport) shareOf(ctx context.Context, m *transport.Outgoing, owner Owner) (*server, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for t.shared[owner.Name] == nil && t.starting[owner.Name] {
		if err := t.awaitChange(ctx); err != nil {
			return nil, err
		}
	}
	if s := t.shared[owner.Name]; s != nil {
		return s, nil
	}
	t.starting[owner.Name] = true
	s, err := t.openServer(ctx, m, owner, owner, func(s *server) { t.shared[owner.Name] = s })
	delete(t.starting, owner.Name)
	t.noteChange()
	return s, err
}

// claimServer returns the server of a new session: one that was asked only for its era, or else a new one.
func (t *Transport) claimServer(ctx context.Context, m *transport.Outgoing, session string) (*server, error) {
	modern, legacy := t.cfg.Owner(m.Caller, false), t.cfg.Owner(m.Caller, true)
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.shared[modern.Name]; s != nil && s.claimSession(session, m.Params) {
		delete(t.shared, modern.Name)
		t.servers[s], t.sessions[session] = legacy, s
		return s, nil
	}
	return t.openServer(ctx, m, modern, legacy, func(s *server) {
		s.claimSession(session, m.Params) // a new server is always free
		t.sessions[session] = s
	})
}

// takeBack takes back a server that has refused this session: it may speak the modern era. If its owner has
// another one for that, the server is ended.
func (t *Transport) takeBack(s *server, session string) {
	t.mu.Lock()
	delete(t.sessions, session)
	free := t.shared[s.owner.Name] == nil && !t.starting[s.owner.Name] && !t.closed && !s.isOver()
	if free {
		t.shared[s.owner.Name] = s
		t.servers[s] = s.owner
	}
	t.mu.Unlock()
	if !free {
		s.quitServer()
	}
}

// openServer opens a server once the limits allow it. It counts as one of payer's; owner's modern requests
// may share it. keep notes where to find it, before the end of the server can be noted. t.mu is held, but for
// the waits.
func (t *Transport) openServer(ctx context.Context, first *transport.Outgoing, owner, payer Owner, keep func(*server)) (*server, error) {
	for {
		wait, err := t.mayOpen(payer)
		if err == nil && wait { // a server that does not end by itself is killed
			err = t.awaitChange(ctx)
		}
		if err != nil {
			return nil, err
		}
		if !wait {
			break
		}
	}
	t.running.Add(1) // Close waits for what is begun
	defer t.running.Done()
	s := &server{t: t, owner: owner, asked: make(map[string]*stream), replies: make(chan struct{}, maxReplies)}
	t.servers[s] = payer
	t.mu.Unlock()
	link, err := t.cfg.Open(ctx, first, &t.running, t.hurry)
	t.mu.Lock()
	if err != nil || t.closed {
		delete(t.servers, s)
	}
	if e, ok := errors.AsType[*Exit](err); ok {
		t.countFailure(payer, e, false)
		return nil, &shim.UpstreamError{Kind: e.Kind, Message: t.cfg.What + " " + e.How, Err: e.Err, Unsent: true}
	}
	if err != nil {
		return nil, err
	}
	if t.closed { // Close was called meanwhile
		link.Stop()
		t.running.Go(link.Close)
		return nil, errClosing
	}
	s.link, s.begun, s.since = link, time.Now(), time.Now()
	keep(s)
	t.running.Go(s.readUntilEnd)
	return s, nil
}

// errClosing is the error of a closed Transport.
var errClosing = &shim.UpstreamError{Kind: shim.KindUnreachable, Message: "the gateway is shutting down", Unsent: true}

// mayOpen reports whether a server of an owner must end before another is opened, or why none can be opened
// now. At the limit, it ends the server that has been unused for longest. t.mu is held.
func (t *Transport) mayOpen(owner Owner) (wait bool, err error) {
	if t.closed {
		return false, errClosing
	}
	if err := t.pauseError(owner); err != nil {
		return false, err
	}
	all, own, ending, ownEnding := t.countServers(owner.Name)
	crowded := owner.Name != "" && t.cfg.MaxOwner > 0 && own >= t.cfg.MaxOwner
	switch {
	case t.cfg.Exclusive && ownEnding:
		return true, nil
	case !crowded && all < t.cfg.Max:
		return false, nil
	case crowded && ownEnding, !crowded && ending:
		return true, nil
	}
	var oldest *server
	var since time.Time
	for s, of := range t.servers {
		if crowded && of.Name != owner.Name {
			continue
		}
		if at, ok := s.unusedSince(); ok && (oldest == nil || at.Before(since)) {
			oldest, since = s, at
		}
	}
	if oldest == nil || !oldest.retireUnused() {
		return false, &shim.BusyError{Key: t.cfg.MaxKey, Limit: t.cfg.MaxWhat, RetryAfter: busyPause}
	}
	t.dropServer(oldest)
	oldest.link.Stop()
	return true, nil
}

// pauseError is the error of an owner whose servers have ended too soon. t.mu is held.
func (t *Transport) pauseError(owner Owner) error {
	p := t.starts[owner.Name]
	if kin := t.starts[owner.Kin]; owner.Kin != "" && kin != nil && (p == nil || p.again.Before(kin.again)) {
		p = kin
	}
	if p == nil || time.Until(p.again) <= 0 {
		return nil
	}
	wait := time.Until(p.again)
	ue := p.why.toError(t.cfg.What, owner.Private || !p.served)
	ue.Kind, ue.Unsent, ue.RetryAfterMs = shim.KindUnreachable, true, wait.Milliseconds()+1
	ue.Message += fmt.Sprintf(" (the next attempt can be made in %s)", wait.Round(100*time.Millisecond))
	return ue
}

// countServers counts the servers that run or are being opened, and those of an owner, and says whether some
// of them are ending. t.mu is held.
func (t *Transport) countServers(owner string) (all, own int, ending, ownEnding bool) {
	for s, of := range t.servers {
		all++
		over := s.isOver()
		ending = ending || over
		if of.Name == owner {
			own++
			ownEnding = ownEnding || over
		}
	}
	return all, own, ending, ownEnding
}

// countFailure counts a server that failed to open or ended too soon, and sets the pause before the next. The
// first one that has served causes no pause. t.mu is held.
func (t *Transport) countFailure(by Owner, why *Exit, served bool) {
	owner := by.Name
	if by.Kin != "" && !served {
		owner = by.Kin
	}
	now := time.Now()
	for name, p := range t.starts {
		if p.again.Add(max(t.cfg.Short, t.cfg.LastPause)).Before(now) {
			delete(t.starts, name)
		}
	}
	p := t.starts[owner]
	if p == nil {
		p = &starts{}
		t.starts[owner] = p
	}
	pauses := p.failures
	if p.failures++; served {
		pauses--
	}
	p.why, p.served, p.again = why, served, now
	if pauses >= 0 {
		p.again = now.Add(min(t.cfg.FirstPause<<min(pauses, 10), t.cfg.LastPause))
	}
}

// noteEnded notes that a server has ended by itself. A server that dies of a server/discover is not broken
// (protocol.md 2.10). short says that it has lived for too short a time.
func (t *Transport) noteEnded(s *server, e *Exit, served, probed, short bool) {
	log := t.cfg.Logger.With("how", e.How)
	if e.Said != "" {
		log = log.With("stderr", e.Said)
	}
	if e.Err != nil {
		log = log.With("err", e.Err)
	}
	switch {
	case probed && !served && !t.cfg.NoProbe:
		log.Debug("the server ended at its first server/discover")
		return
	case e.Usual:
		log.Info(t.cfg.What + " has ended")
	default:
		log.Warn(t.cfg.What + " has ended")
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	owner := t.servers[s]
	if !served || short {
		t.countFailure(owner, e, served)
		return
	}
	delete(t.starts, owner.Name)
	if owner.Kin != "" {
		delete(t.starts, owner.Kin)
	}
}

// removeServer drops a server that is closed for requests.
func (t *Transport) removeServer(s *server) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.dropServer(s)
}

// dropServer is removeServer with t.mu held.
func (t *Transport) dropServer(s *server) {
	if t.shared[s.owner.Name] == s {
		delete(t.shared, s.owner.Name)
	}
	for id, of := range t.sessions {
		if of == s {
			delete(t.sessions, id)
		}
	}
}

// buryServer removes a server that has ended altogether.
func (t *Transport) buryServer(s *server) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.servers, s)
	t.noteChange()
}

// awaitChange waits until a server has ended, or the opening of a shared one. t.mu is held before and
// afterwards.
func (t *Transport) awaitChange(ctx context.Context) error {
	changed := t.changed
	t.mu.Unlock()
	defer t.mu.Lock()
	select { // noteChange wakes it
	case <-changed:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// noteChange wakes all who wait for a change. t.mu is held.
func (t *Transport) noteChange() {
	close(t.changed)
	t.changed = make(chan struct{})
}
