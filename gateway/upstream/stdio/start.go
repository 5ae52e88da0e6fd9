package stdio

import (
	"fmt"
	"time"

	"taskgate/shim"
)

// A process that ends before it has said anything is started again after firstPause, after
// twice as long each time, and after lastPause at most.
const (
	firstPause = time.Second
	lastPause  = 30 * time.Second
)

// ownerOf names who shares a process with this caller. own says that nobody does: the process
// is that of one session.
func (t *Transport) ownerOf(caller shim.Session, legacy bool) (owner string, own bool) {
	switch p := t.cfg.Process; {
	case p == ProcessShared, p == ProcessAuto && !legacy:
		return "", false
	case p == ProcessPrincipal && caller.Principal != "":
		return "principal " + caller.Principal, false
	case legacy:
		return "session", true
	case caller.Key == "":
		return "", false
	}
	return "session " + caller.Key, false
}

// server finds the server of this key, or starts it. One of a session's own is always started.
func (t *Transport) server(k serverKey, own, probe bool) (*server, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.shared[k]; s != nil && !own {
		return s, nil
	}
	if err := t.mayStart(); err != nil {
		return nil, err
	}
	s := &server{
		t: t, key: k, own: own, private: k.owner != "", probe: probe && t.cfg.Silence > 0,
		asked: make(map[string]*stream), gets: make(map[string]*stream), sessions: make(map[string]bool),
		replies: make(chan struct{}, maxReplies), since: time.Now(),
	}
	link, err := t.open(&t.cfg, &t.running, t.hurry)
	if err != nil {
		t.failed(ending{how: "cannot be started"})
		return nil, &shim.UpstreamError{Kind: kindUnreachable, Message: "the process of the server cannot be started", Err: err, Unsent: true}
	}
	s.link = link
	t.servers[s] = true
	if !own {
		t.shared[k] = s
	}
	t.running.Go(s.run)
	return s, nil
}

// mayStart reports why no process can be started now. Where there are as many as there may be,
// the one that has not been used for longest is ended. t.mu is held.
func (t *Transport) mayStart() error {
	if t.closed {
		return &shim.UpstreamError{Kind: kindUnreachable, Message: "the gateway is shutting down", Unsent: true}
	}
	if wait := time.Until(t.again); wait > 0 {
		ue := &shim.UpstreamError{Kind: kindUnreachable, Message: "the process of the server " + t.why.how, Unsent: true, RetryAfterMs: wait.Milliseconds() + 1}
		if text := t.why.shown(); text != "" {
			ue.Message += ": " + text
		}
		ue.Message += fmt.Sprintf(" (it can be started again in %s)", wait.Round(100*time.Millisecond))
		return ue
	}
	if len(t.servers) < t.cfg.MaxProcesses {
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
		return &shim.BusyError{Key: "max_processes", Limit: "processes of this server", RetryAfter: firstPause}
	}
	t.drop(oldest)
	oldest.link.stop()
	return nil
}

// failed counts a process that could not be started, or ended before it said anything. t.mu is
// held.
func (t *Transport) failed(why ending) {
	t.again = time.Now().Add(min(firstPause<<min(t.failures, 10), lastPause))
	t.failures++
	t.why = why
}

// works takes note that a process has said something.
func (t *Transport) works() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.failures, t.again = 0, time.Time{}
}

// ended takes note of the end of a server that the gateway has not ended. A server that dies
// of a server/discover is not broken (protocol.md 2.10).
func (t *Transport) ended(s *server, e ending, served bool) {
	if s.probe && !served {
		t.cfg.Logger.Debug("the server ended at its first server/discover", "how", e.how, "stderr", e.stderr)
		return
	}
	t.cfg.Logger.Warn("the process of the server has ended", "how", e.how, "stderr", e.stderr)
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
