package streamable

import (
	"net/http"
	"strconv"
	"strings"
	"time"
)

// atOnce says that a server closes a connection after its response.
const atOnce time.Duration = 1

// current returns what performs the requests.
func (t *Transport) current() *http.Transport {
	if shorter := t.shorter.Load(); shorter != nil {
		return shorter
	}
	return t.Base
}

// learnKeepAlive heeds the header Keep-Alive of a response: its timeout is after how many seconds the server closes
// an idle connection. Node's server says so, and a request that meets the end of a connection fails: it may have run.
// Connections are given up a second before that, or after half of it. A later, longer time changes nothing.
func (t *Transport) learnKeepAlive(header string) {
	idle, ok := idleTime(header)
	if !ok || idle >= t.current().IdleConnTimeout {
		return
	}
	t.learns.Lock()
	defer t.learns.Unlock()
	before := t.current()
	if idle >= before.IdleConnTimeout {
		return
	}
	next := before.Clone()
	next.IdleConnTimeout, next.DisableKeepAlives = idle, idle == atOnce
	t.shorter.Store(next)
	before.CloseIdleConnections() // those in use go when they become idle, and are not used again
}

// idleTime returns how long a connection may be idle by the header Keep-Alive; ok is false if that says nothing.
func idleTime(header string) (idle time.Duration, ok bool) {
	for param := range strings.SplitSeq(header, ",") {
		name, value, _ := strings.Cut(strings.TrimSpace(param), "=")
		n, err := strconv.ParseUint(strings.Trim(value, `"`), 10, 16)
		if !strings.EqualFold(name, "timeout") || err != nil {
			continue
		}
		said := time.Duration(n) * time.Second
		return max(said-time.Second, said/2, atOnce), true
	}
	return 0, false
}

// CloseIdle closes the connections that no request uses.
func (t *Transport) CloseIdle() {
	t.Base.CloseIdleConnections()
	t.current().CloseIdleConnections()
}
