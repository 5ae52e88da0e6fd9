package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
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
	s := &asideServer{server: mcp.NewServer(&mcp.Implementation{Name: "aside", Version: "1"}, nil)}
	s.server.AddTool(&mcp.Tool{Name: "colour", InputSchema: json.RawMessage(`{"type":"object"}`)},
		func(ctx context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			// With a context of its own a question does not name the call.
			beside, end := context.WithCancel(context.Background())
			defer end()
			defer context.AfterFunc(ctx, end)()
			return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: s.asks(beside, r.Session)}}}, nil
		})
	serve := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return s.server },
		&mcp.StreamableHTTPOptions{EventStore: mcp.NewMemoryEventStore(nil)})
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			body, _ := io.ReadAll(r.Body)
			r.Body = io.NopCloser(bytes.NewReader(body))
			if !strings.Contains(string(body), `"method"`) {
				s.mu.Lock()
				s.answers = append(s.answers, string(body))
				s.mu.Unlock()
			}
		}
		serve.ServeHTTP(w, r)
	}))
	t.Cleanup(func() {
		for session := range s.server.Sessions() {
			_ = session.Close()
		}
		web.CloseClientConnections()
		web.Close()
	})
	s.url = web.URL
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

// beginAsked initializes a session whose client answers forms.
func beginAsked(t *testing.T, g *gateway) *session {
	t.Helper()
	s := &session{t: t}
	s.do(g, protocol.MethodInitialize, `{"protocolVersion":"2025-11-25","capabilities":{"elicitation":{}},"clientInfo":{"name":"e2e","version":"1"}}`)
	return s
}

// asked are the ids of the questions on the session's GET stream at a replica, which is
// opened as soon as that lets it. Other messages are told by their methods.
func (s *session) asked(g *gateway) <-chan string {
	s.t.Helper()
	var resp *http.Response
	ctx, leave := context.WithCancel(s.t.Context())
	eventually(s.t, "a GET stream", func() error {
		resp = s.request(ctx, g, http.MethodGet, "")
		if resp.StatusCode == http.StatusOK {
			return nil
		}
		_ = resp.Body.Close()
		return errors.New(resp.Status)
	})
	ids, done := make(chan string, 100), make(chan struct{})
	go func() {
		defer close(done)
		for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
			data, ok := strings.CutPrefix(lines.Text(), "data: ")
			var m struct {
				ID     string
				Method string
			}
			switch {
			case !ok || json.Unmarshal([]byte(data), &m) != nil:
			case m.Method == protocol.MethodElicit:
				ids <- m.ID
			default:
				ids <- m.Method
			}
		}
	}()
	s.t.Cleanup(func() {
		leave()
		_ = resp.Body.Close()
		<-done
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

// answers posts a client's answer to a replica.
func (s *session) answers(g *gateway, id, colour string) {
	s.t.Helper()
	body := fmt.Sprintf(`{"jsonrpc":"2.0","id":%q,"result":{"action":"accept","content":{"colour":%q}}}`, id, colour)
	resp := s.request(s.t.Context(), g, http.MethodPost, body)
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusAccepted {
		s.t.Errorf("answer: %s", resp.Status)
	}
}

// newAsideWorld is a session whose GET stream, and so the server's, is at the first of
// two replicas.
func newAsideWorld(t *testing.T) (server *asideServer, a, b *gateway, s *session, ids <-chan string) {
	t.Helper()
	store := redistest.Start(t)
	server = startAside(t)
	yaml := fmt.Sprintf(asideReplica, store.URL(), server.url)
	a, b = startGateway(t, configured(t, yaml)...), startGateway(t, configured(t, yaml)...)
	s = beginAsked(t, a)
	ids = s.asked(a)
	eventually(t, "the server's stream", func() error {
		server.server.AddTool(&mcp.Tool{Name: fmt.Sprint("more", len(ids)), InputSchema: json.RawMessage(`{"type":"object"}`)},
			func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
				return &mcp.CallToolResult{}, nil
			})
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
	if again := nextQuestion(t, s.asked(b)); again != id {
		t.Errorf("asked under another id: %s, %s", id, again)
	}
	for _, colour := range []string{"red", "green"} {
		s.answers(b, id, colour)
	}
	text := ""
	eventually(t, "the answer", func() error {
		select {
		case text = <-got:
			return nil
		default:
			return errNotYet
		}
	})
	if text != "accept red" {
		t.Errorf("the server got %s", text)
	}
	if n := server.answered(); len(n) != 1 {
		t.Errorf("the server was answered %q", n)
	}
}
