package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	protocol "taskgate/internal/mcp"
	"taskgate/internal/redistest"
)

// asideServer is a server of the Go SDK that asks on the GET stream of its session. It
// counts the answers that reach it.
type asideServer struct {
	url    string
	server *mcp.Server

	mu      sync.Mutex
	answers []string
}

var colourForm = &mcp.ElicitParams{Message: "Which colour?", RequestedSchema: json.RawMessage(`{"type":"object","properties":{"colour":{"type":"string"}}}`)}

// startAside serves until the test ends. Streams of calls can be resumed.
func startAside(t *testing.T) *asideServer {
	s := &asideServer{server: newPeer("aside")}
	h := streamable(s.server, resumable())
	s.url = serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			if body := string(takeBody(r)); !strings.Contains(body, `"method"`) {
				s.mu.Lock()
				s.answers = append(s.answers, body)
				s.mu.Unlock()
			}
		}
		h.ServeHTTP(w, r)
	}))
	return s
}

// asks puts the question and says what came of it.
func (s *asideServer) asks(ctx context.Context, session *mcp.ServerSession) string {
	e, err := session.Elicit(ctx, colourForm)
	if err != nil {
		return err.Error()
	}
	return fmt.Sprint(e.Action, " ", e.Content["colour"])
}

// answered are the answers so far.
func (s *asideServer) answered() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.answers)
}

const asideReplica = `
store: %s
heartbeat: 1s
upstreams:
  - name: aside
    path: /mcp
    url: %s
    defaults: {poll_interval: 100ms}
`

// questions are the ids of the questions on the session's GET stream at a replica. Other messages are told by
// their methods.
func (s *session) questions(g *gateway) <-chan string {
	s.t.Helper()
	ids := make(chan string, 100)
	s.listen(g, func(m wireMessage) {
		if id, err := strconv.Unquote(string(m.ID)); err == nil && m.Method == protocol.MethodElicit {
			ids <- id
		} else {
			ids <- m.Method
		}
	})
	return ids
}

// nextQuestion waits for the next one.
func nextQuestion(t *testing.T, ids <-chan string) string {
	t.Helper()
	id := ""
	eventually(t, "a question", func() error {
		for {
			select {
			case id = <-ids:
				if strings.Contains(id, "-") {
					return nil
				}
			default:
				return errNotYet
			}
		}
	})
	return id
}

// newAsideWorld is a session whose GET stream, and so the server's, is at the first of
// two replicas.
func newAsideWorld(t *testing.T) (server *asideServer, a, b *gateway, s *session, ids <-chan string) {
	t.Helper()
	store := redistest.Start(t)
	server = startAside(t)
	yaml := fmt.Sprintf(asideReplica, store.URL(), server.url)
	a, b = startGateway(t, configured(t, yaml)...), startGateway(t, configured(t, yaml)...)
	s = begin(t, a)
	ids = s.questions(a)
	eventually(t, "the server's stream", func() error {
		addWords(server.server, fmt.Sprint("more", len(ids)), func(context.Context, *mcp.CallToolRequest) string { return "" })
		if len(ids) == 0 {
			return errNotYet
		}
		return nil
	})
	return server, a, b, s, ids
}

// What a server asks outside of any call outlives the replica that heard it, and on which
// the client was asked: it is asked again at the other, under the same id, and the
// server gets its answer, once.
func TestSessionQuestionOfAKilledReplica(t *testing.T) {
	t.Parallel()
	server, a, b, s, ids := newAsideWorld(t)
	got := make(chan string, 1)
	for session := range server.server.Sessions() {
		go func() { got <- server.asks(t.Context(), session) }()
	}
	id := nextQuestion(t, ids)
	a.Kill()
	if again := nextQuestion(t, s.questions(b)); again != id {
		t.Errorf("asked under another id: %s, %s", id, again)
	}
	for _, colour := range []string{"red", "green"} {
		s.answer(b, json.RawMessage(strconv.Quote(id)), fmt.Sprintf(`{"colour":%q}`, colour))
	}
	if text := <-got; text != "accept red" {
		t.Errorf("the server got %s", text)
	}
	if n := server.answered(); len(n) != 1 {
		t.Errorf("the server was answered %q", n)
	}
}
