package chaos

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"taskgate/internal/mcp"
)

// stream is the answer to one call as events that can be read again.
type stream struct {
	id string

	mu      sync.Mutex
	events  []string
	over    bool
	changed chan struct{} // closed with each change
	readers int
	picked  int // how often it was picked up
}

func (u *upstream) newStream(s *upstreamSession) *stream {
	st := &stream{id: uuid.NewString(), changed: make(chan struct{})}
	u.mu.Lock()
	defer u.mu.Unlock()
	s.streams[st.id] = st
	return st
}

// add appends an event.
func (st *stream) add(data string, over bool) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if data != "" {
		st.events = append(st.events, data)
	}
	st.over = over
	close(st.changed)
	st.changed = make(chan struct{})
}

// work is the call: what the upstream says and asks in its course, then the answer.
func (u *upstream) work(ctx context.Context, st *stream, m message, takes time.Duration) {
	st.add(" ", false) // the priming event: from now on the stream can be resumed
	said := saying(m.Params.Arguments.Call)
	answers := make([]string, len(m.Params.Arguments.Asks))
	for i := range len(said) + 1 {
		if !u.ask(ctx, st, m, i, answers) {
			break
		}
		// Some of it comes in bursts.
		if i == len(said) || i%3 != 1 && !wait(ctx, takes/time.Duration(len(said))) {
			break
		}
		if token := m.Params.Meta.ProgressToken; token != nil {
			st.add(fmt.Sprintf(`{"jsonrpc":"2.0","method":%q,"params":{"progressToken":%s,"progress":%d,"total":%d,"message":%q}}`,
				mcp.NotifyProgress, token, i+1, len(said), said[i]), false)
		}
	}
	if ctx.Err() != nil || !u.letGo(ctx) {
		st.add("", true)
		return
	}
	st.add(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,%s}`, m.ID, outcome(m, answers)), true)
}

// from returns the events after the first n, whether there will be more, and what
// tells of them.
func (st *stream) from(n int) ([]string, bool, <-chan struct{}) {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.events[min(n, len(st.events)):], st.over, st.changed
}

// read counts those who read the stream and says how many others do.
func (st *stream) read(n int) int {
	st.mu.Lock()
	defer st.mu.Unlock()
	others := st.readers
	st.readers += n
	return others
}

// follow writes the events after the first n until the last one.
func (st *stream) follow(w http.ResponseWriter, r *http.Request, n int) {
	st.read(1)
	defer st.read(-1)
	w.Header().Set("Content-Type", mcp.TypeSSE)
	out := http.NewResponseController(w)
	for {
		events, over, changed := st.from(n)
		for _, data := range events {
			n++
			if _, err := fmt.Fprintf(w, "id: %s/%d\ndata: %s\n\n", st.id, n, data); err != nil {
				return
			}
		}
		if out.Flush() != nil || over {
			return
		}
		select {
		case <-changed:
		case <-r.Context().Done():
			return
		}
	}
}

// tellEvery is how often the upstream says something outside of calls.
const tellEvery = 200 * time.Millisecond

// tell says something outside of calls, numbered, until the stream ends. There is one such stream at a time.
func (u *upstream) tell(w http.ResponseWriter, r *http.Request, s *upstreamSession) {
	u.mu.Lock()
	taken := s.listens
	s.listens = true
	u.mu.Unlock()
	if taken {
		w.WriteHeader(http.StatusConflict)
		return
	}
	defer func() {
		u.mu.Lock()
		defer u.mu.Unlock()
		s.listens = false
	}()
	w.Header().Set("Content-Type", mcp.TypeSSE)
	out := http.NewResponseController(w)
	for out.Flush() == nil && wait(r.Context(), tellEvery) {
		u.mu.Lock()
		s.told++
		no := s.told
		u.mu.Unlock()
		fmt.Fprintf(w, "data: {\"jsonrpc\":\"2.0\",\"method\":%q,\"params\":{\"level\":\"info\",\"logger\":%q,\"data\":\"%p %d\"}}\n\n",
			mcp.NotifyMessage, outside, s, no)
	}
}

// resume goes on with a stream after the last event that was seen of it. A GET without one is for
// what the server says outside of calls.
func (u *upstream) resume(w http.ResponseWriter, r *http.Request, s *upstreamSession) {
	last := r.Header.Get(mcp.HeaderLastEventID)
	if s != nil && last == "" && u.tells {
		u.tell(w, r, s)
		return
	}
	if s == nil || last == "" {
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	}
	id, number, _ := strings.Cut(last, "/")
	n, err := strconv.Atoi(number)
	u.mu.Lock()
	st := s.streams[id]
	if st == nil || err != nil {
		u.gone++
		u.mu.Unlock()
		http.Error(w, "no such stream", http.StatusNotFound)
		return
	}
	u.resumed++
	st.picked++
	if st.read(0) > 0 {
		u.foreign++
	}
	u.mu.Unlock()
	st.follow(w, r, n)
}
