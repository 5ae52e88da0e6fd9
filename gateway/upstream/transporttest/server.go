package transporttest

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"fmt"
	"io"
	"net/http"
	"sync"

	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
)

// Server is the server of the suite over HTTP, by whichever of its two transports.
type Server struct {
	// Die is called when a client wants it: the server has to break all connections.
	Die func()

	older bool
	dying sync.Mutex // held while a death goes on

	mu       sync.Mutex
	sessions map[string]*web
}

// Dead waits until no death goes on: a connection that is made then lasts.
func (s *Server) Dead() {
	s.dying.Lock()
	defer s.dying.Unlock()
}

// NewHTTP makes a server of Streamable HTTP.
func NewHTTP() *Server { return &Server{sessions: map[string]*web{}} }

// NewSSE makes a server of HTTP+SSE (protocol.md 5.2).
func NewSSE() *Server { return &Server{sessions: map[string]*web{}, older: true} }

// web is a session with its streams.
type web struct {
	*session

	mu      sync.Mutex
	streams map[string]chan []byte // by the key of a request; "" for the GET stream
}

// maxWaiting is how many messages wait in a stream; the server is slow beyond that.
const maxWaiting = 16

func (s *Server) begin() (string, *web) {
	w := &web{streams: map[string]chan []byte{"": make(chan []byte, maxWaiting)}} // what is said aside waits for the GET
	w.session = newSession(func(about string, message []byte) {
		if s.older {
			about = ""
		}
		w.mu.Lock()
		c := w.streams[about]
		w.mu.Unlock()
		select {
		case c <- message:
		case <-w.ended:
		}
	}, func() {
		s.dying.Lock()
		defer s.dying.Unlock()
		s.Forget() // from then on clients may come back, whose connections break with the others
		s.Die()
	})
	id := rand.Text()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sessions[id] = w
	return id, w
}

// Forget ends all sessions, as a restart does.
func (s *Server) Forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, w := range s.sessions {
		close(w.ended)
		delete(s.sessions, id)
	}
}

func (s *Server) find(id string) *web {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sessions[id]
}

func (s *Server) end(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if w := s.sessions[id]; w != nil {
		close(w.ended)
		delete(s.sessions, id)
	}
}

// open begins a stream of the session.
func (w *web) open(key string) (messages <-chan []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if key != "" {
		w.streams[key] = make(chan []byte, maxWaiting)
	}
	return w.streams[key]
}

// ServeHTTP serves one request.
func (s *Server) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	if s.older {
		s.serveOlder(rw, r)
		return
	}
	id := r.Header.Get(mcp.HeaderSession)
	w := s.find(id)
	if w == nil && id != "" {
		http.Error(rw, "unknown session", http.StatusNotFound)
		return
	}
	switch r.Method {
	case http.MethodGet:
		w.stream(rw, r, w.open(""), "")
		return
	case http.MethodDelete:
		s.end(id)
		rw.WriteHeader(http.StatusNoContent)
		return
	}
	body := w.read(r)
	m, err := jsonrpc.ParseLenient(body)
	if err != nil {
		http.Error(rw, "no message", http.StatusBadRequest)
		return
	}
	if w == nil {
		id, w = s.begin()
		rw.Header().Set(mcp.HeaderSession, id)
	}
	if m.Kind != jsonrpc.Request {
		w.take(body)
		rw.WriteHeader(http.StatusAccepted)
		return
	}
	messages := w.open(m.ID.Key())
	go w.take(body)
	w.stream(rw, r, messages, m.ID.Key())
}

// serveOlder serves a request of HTTP+SSE.
func (s *Server) serveOlder(rw http.ResponseWriter, r *http.Request) {
	id := r.URL.Query().Get("session")
	switch w := s.find(id); {
	case r.Method == http.MethodGet:
		id, w = s.begin()
		defer s.end(id)
		messages := w.open("")
		rw.Header().Set("Content-Type", mcp.TypeSSE)
		fmt.Fprintf(rw, "event: endpoint\ndata: ?session=%s\n\n", id)
		w.stream(rw, r, messages, "")
	case r.Method != http.MethodPost || id == "":
		rw.WriteHeader(http.StatusMethodNotAllowed)
	case w == nil:
		http.Error(rw, "unknown session", http.StatusNotFound)
	default:
		body := w.read(r)
		rw.WriteHeader(http.StatusAccepted)
		w.takeSoon(body)
	}
}

// read reads what a client sends, unless the session is deaf. w is nil before the first.
func (w *web) read(r *http.Request) []byte {
	if w != nil {
		w.reading.Lock()
		defer w.reading.Unlock()
	}
	body, _ := io.ReadAll(r.Body)
	return body
}

// stream sends messages until the answer to a request, or, for "", until the client leaves.
func (w *web) stream(rw http.ResponseWriter, r *http.Request, messages <-chan []byte, request string) {
	rw.Header().Set("Content-Type", mcp.TypeSSE)
	flush := http.NewResponseController(rw)
	for {
		_ = flush.Flush()
		select {
		case m := <-messages:
			fmt.Fprintf(rw, "event: message\ndata: %s\n\n", m)
			if sent, err := jsonrpc.ParseLenient(m); err == nil && sent.Kind != jsonrpc.Request && sent.ID.Key() == request && request != "" {
				return
			}
		case <-w.ended:
			return
		case <-r.Context().Done():
			return
		}
	}
}

// ServeStdio is the server of the suite over stdio: one process that runs until its input ends.
func ServeStdio(in io.Reader, out io.Writer, die func()) {
	var mu sync.Mutex
	s := newSession(func(_ string, message []byte) {
		mu.Lock()
		defer mu.Unlock()
		_, _ = out.Write(append(message, '\n'))
	}, die)
	lines := bufio.NewReader(in)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return
		}
		if bytes.Contains(line, []byte(`"test/deaf"`)) {
			s.take(line)
		} else {
			s.takeSoon(line)
		}
	}
}
