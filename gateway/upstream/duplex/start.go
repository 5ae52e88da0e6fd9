package duplex

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"taskgate/shim"
)

// busyPause is when a caller may come back that found all servers in use.
const busyPause = time.Second

// server finds the server of this key, or opens it. One of a session's own is always opened.
func (t *Transport) server(ctx context.Context, header http.Header, k serverKey, own, probe bool) (*server, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.shared[k]; s != nil && !own {
		return s, nil
	}
	if err := t.mayStart(); err != nil {
		return nil, err
	}
	t.running.Add(1) // Close waits for what is begun
	defer t.running.Done()
	link, err := t.openLink(ctx, header, own)
	if e, ok := errors.AsType[*Ending](err); ok {
		t.failed(e)
		return nil, &shim.UpstreamError{Kind: e.Kind, Message: t.cfg.What + " " + e.How, Err: e.Err, Unsent: true}
	}
	if err != nil {
		return nil, err
	}
	if t.closed { // meanwhile
		link.Stop()
		t.running.Go(link.Close)
		return nil, errClosing
	}
	s := &server{
		t: t, link: link, key: k, own: own, private: k.owner != "", probe: probe && t.cfg.Silence > 0,
		asked: make(map[string]*stream), gets: make(map[string]*stream), sessions: make(map[string]bool),
		replies: make(chan struct{}, maxReplies), since: time.Now(),
	}
	t.servers[s] = true
	if !own {
		t.shared[k] = s
	}
	t.running.Go(s.run)
	return s, nil
}

// openLink opens a Link. Where it is for one session, others are not held up. t.mu is held.
func (t *Transport) openLink(ctx context.Context, header http.Header, own bool) (Link, error) {
	if own {
		t.opening++
		t.mu.Unlock()
		defer func() {
			t.mu.Lock()
			t.opening--
		}()
	}
	return t.cfg.Open(ctx, header, &t.running, t.hurry)
}

// errClosing is the error of a Transport that is closed.
var errClosing = &shim.UpstreamError{Kind: KindUnreachable, Message: "the gateway is shutting down", Unsent: true}

// mayStart reports why no server can be opened now. Where there are as many as there may be,
// the one that has not been used for longest is ended. t.mu is held.
func (t *Transport) mayStart() error {
	if t.closed {
		return errClosing
	}
	if wait := time.Until(t.again); wait > 0 {
		ue := &shim.UpstreamError{Kind: KindUnreachable, Message: t.cfg.What + " " + t.why.How, Err: t.why.Err, Unsent: true, RetryAfterMs: wait.Milliseconds() + 1}
		if text := t.why.shown(); text != "" {
			ue.Message += ": " + text
		}
		ue.Message += fmt.Sprintf(" (the next attempt can be made in %s)", wait.Round(100*time.Millisecond))
		return ue
	}
	if len(t.servers)+t.opening < t.cfg.Max {
		return nil
	}
	var oldest *server
	var since time.Time
	for s := range t.servers {
		if at, ok := s.unused(); ok && (oldest == nil || at.Before(since)) {
			oldest, since = s, at
		}
	}
	if oldest == nil || !oldest.retire() {
		return &shim.BusyError{Key: t.cfg.MaxKey, Limit: t.cfg.MaxWhat, RetryAfter: busyPause}
	}
	t.drop(oldest)
	oldest.link.Stop()
	return nil
}

// failed counts a server that could not be opened, or ended before it said anything. t.mu is
// held.
func (t *Transport) failed(why *Ending) {
	t.again = time.Now().Add(min(t.cfg.FirstPause<<min(t.failures, 10), t.cfg.LastPause))
	t.failures++
	t.why = why
}

// works takes note that a server has said something.
func (t *Transport) works() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.failures, t.again = 0, time.Time{}
}

// ended takes note of the end of a server that the gateway has not ended. A server that dies
// of a server/discover is not broken (protocol.md 2.10).
func (t *Transport) ended(s *server, e *Ending, served bool) {
	log := t.cfg.Logger.With("how", e.How)
	if e.Said != "" {
		log = log.With("stderr", e.Said)
	}
	if e.Err != nil {
		log = log.With("err", e.Err)
	}
	switch {
	case s.probe && !served:
		log.Debug("the server ended at its first server/discover")
		return
	case e.Usual:
		log.Info(t.cfg.What + " has ended")
	default:
		log.Warn(t.cfg.What + " has ended")
	}
	if !served {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.failed(e)
	}
}

// find is the server of a session; nil if there is none.
func (t *Transport) find(session string) *server {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.sessions[session]
}

// forget drops a session.
func (t *Transport) forget(session string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.sessions, session)
}

// remove drops a server that takes no more requests.
func (t *Transport) remove(s *server) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.drop(s)
}

// drop is remove with t.mu held.
func (t *Transport) drop(s *server) {
	delete(t.servers, s)
	if t.shared[s.key] == s {
		delete(t.shared, s.key)
	}
	for id, of := range t.sessions {
		if of == s {
			delete(t.sessions, id)
		}
	}
}
