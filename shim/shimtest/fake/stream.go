package fake

import (
	"fmt"
	"sync"
)

// stream is one event stream with its log, to be read by one or more responses.
type stream struct {
	name string

	mu     sync.Mutex
	log    []event
	ended  bool
	change chan struct{}
	open   int
}

type event struct{ id, text string }

func (s *Server) newStream(ses *session) *stream {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := &stream{name: s.nextID("stream-"), change: make(chan struct{})}
	if ses != nil {
		ses.streams = append(ses.streams, st)
	}
	return st
}

// add appends an event; extra are further fields, each with its line end.
func (st *stream) add(extra, data string) string {
	st.mu.Lock()
	defer st.mu.Unlock()
	id := fmt.Sprintf("%s_%d", st.name, len(st.log))
	st.log = append(st.log, event{id, fmt.Sprintf("id: %s\n%sdata: %s\n\n", id, extra, data)})
	st.wake()
	return id
}

func (st *stream) end() {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.ended = true
	st.wake()
}

func (st *stream) wake() {
	close(st.change)
	st.change = make(chan struct{})
}

func (st *stream) readers() int {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.open
}

// after finds the place behind an event.
func (st *stream) after(id string) (int, bool) {
	st.mu.Lock()
	defer st.mu.Unlock()
	for i, e := range st.log {
		if e.id == id {
			return i + 1, true
		}
	}
	return 0, false
}

// replay writes the log from a place on.
func (st *stream) replay(x *Exchange, from int) {
	st.mu.Lock()
	log := st.log[from:]
	st.mu.Unlock()
	for _, e := range log {
		x.write(e.text)
	}
}

// follow writes the log from a place on, and what is added, until the stream or
// the response ends.
func (st *stream) follow(x *Exchange, from int) {
	st.mu.Lock()
	st.open++
	st.mu.Unlock()
	defer func() {
		st.mu.Lock()
		st.open--
		st.mu.Unlock()
	}()
	for {
		st.mu.Lock()
		log, ended, change := st.log, st.ended, st.change
		st.mu.Unlock()
		for ; from < len(log); from++ {
			x.write(log[from].text)
		}
		if ended {
			return
		}
		select {
		case <-change:
		case <-x.R.Context().Done():
			return
		case <-x.s.closing:
			return
		}
	}
}
