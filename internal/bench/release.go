package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"
	"time"

	"taskgate/internal/mcp"
)

// releasedAt begins the text of a result; the time of the answer follows, in
// nanoseconds since 1970. Whoever reads the result on the same machine knows how long
// it was on its way.
const releasedAt = "released at "

// releaser is an MCP server of version 2026-07-28 whose calls stay open until they are
// released, the oldest first.
type releaser struct {
	mu    sync.Mutex
	calls []chan struct{} // open, in the order in which they came
	stop  chan struct{}   // ends the schedule
}

// ServeHTTP is the server. GET tells how many calls are open; with ?every=10ms it
// begins to release one call after each such time, and with ?every=0 it stops.
func (s *releaser) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodGet {
		s.control(w, r)
		return
	}
	var m struct {
		ID     json.RawMessage
		Method string
	}
	if err := json.NewDecoder(r.Body).Decode(&m); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	switch {
	case m.ID == nil:
		w.WriteHeader(http.StatusAccepted)
	case m.Method == mcp.MethodDiscover:
		answer(w, m.ID, discoverResult)
	case m.Method == mcp.MethodToolsList:
		answer(w, m.ID, holdTools)
	default:
		select {
		case <-s.open():
			answer(w, m.ID, fmt.Sprintf(`{"resultType":"complete","content":[{"type":"text","text":"%s%d"}]}`, releasedAt, time.Now().UnixNano()))
		case <-r.Context().Done():
		}
	}
}

func (s *releaser) control(w http.ResponseWriter, r *http.Request) {
	if text := r.FormValue("every"); text != "" {
		every, err := time.ParseDuration(text)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		s.schedule(every)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	_, _ = io.WriteString(w, strconv.Itoa(len(s.calls)))
}

// open adds a call.
func (s *releaser) open() <-chan struct{} {
	released := make(chan struct{})
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, released)
	return released
}

// schedule replaces the schedule, by none where every is 0.
func (s *releaser) schedule(every time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stop != nil {
		close(s.stop)
		s.stop = nil
	}
	if every > 0 {
		s.stop = make(chan struct{})
		go s.run(every, s.stop) // ends with the schedule, or the process
	}
}

// run releases calls. Each has its own time, so that one that is late moves no other.
func (s *releaser) run(every time.Duration, stop <-chan struct{}) {
	begin := time.Now()
	timer := time.NewTimer(every)
	defer timer.Stop()
	for n := 2; ; n++ {
		select {
		case <-timer.C:
		case <-stop:
			return
		}
		s.release()
		timer.Reset(time.Until(begin.Add(time.Duration(n) * every)))
	}
}

func (s *releaser) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.calls) > 0 {
		close(s.calls[0])
		s.calls = s.calls[1:]
	}
}
