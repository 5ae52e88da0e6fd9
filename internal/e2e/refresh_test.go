package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"taskgate/internal/otlptest"
	"taskgate/internal/redistest"
	"taskgate/internal/taskclient"
)

// signedIn is a server that signs its callers in, with streams that can be resumed. Its tool
// "wait" answers with its argument once all may go on.
type signedIn struct {
	URL      string
	provider oidc
	proceed  chan struct{}
	grants   map[string]grant // by user

	mu     sync.Mutex
	tokens map[string]string // the tokens that are good, and whose they are
	all    []string          // all that there have been
	strays []string          // requests without a good token
}

func startSignedInServer(t *testing.T) *signedIn {
	t.Helper()
	s := &signedIn{provider: startOIDC(t), proceed: make(chan struct{}), grants: map[string]grant{}, tokens: map[string]string{}}
	s.provider.AccessTTL = 3 * time.Hour
	s.provider.FastForward(-time.Hour) // refresh takes its clock forward again
	server := sdk.NewServer(&sdk.Implementation{Name: "signed-in", Version: "1"}, nil)
	type args struct {
		Say string `json:"say"`
	}
	sdk.AddTool(server, &sdk.Tool{Name: "wait"}, func(ctx context.Context, _ *sdk.CallToolRequest, in args) (*sdk.CallToolResult, any, error) {
		select {
		case <-s.proceed:
		case <-ctx.Done():
		}
		return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: in.Say}}}, nil, nil
	})
	mcp := sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return server }, &sdk.StreamableHTTPOptions{EventStore: sdk.NewMemoryEventStore(nil)})
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasPrefix(r.URL.Path, "/.well-known/oauth-protected-resource"):
			_ = json.NewEncoder(w).Encode(map[string]any{"resource": s.URL, "authorization_servers": []string{s.provider.Issuer()}})
		case !s.knows(r):
			w.Header().Set("WWW-Authenticate", `Bearer error="invalid_token"`)
			w.WriteHeader(http.StatusUnauthorized)
		default:
			mcp.ServeHTTP(w, r)
		}
	}))
	s.URL = web.URL + "/mcp"
	t.Cleanup(func() {
		web.CloseClientConnections()
		web.Close()
	})
	return s
}

// knows reports whether a request has a token that is good.
func (s *signedIn) knows(r *http.Request) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.tokens[strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")] == "" {
		s.strays = append(s.strays, r.Method)
		return false
	}
	return true
}

// refresh gives a user a new token. Of the tokens before only the last one stays good.
func (s *signedIn) refresh(user string) string {
	s.provider.FastForward(time.Second) // a token of another second is another token
	g, again := s.grants[user]
	if !again {
		g = s.provider.signIn(user)
		s.grants[user] = g
	} else {
		g = s.provider.token(url.Values{"grant_type": {"refresh_token"}, "refresh_token": {g.Refresh}})
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, mine := len(s.all)-1, 0; i >= 0; i-- {
		if s.tokens[s.all[i]] != user {
			continue
		}
		if mine++; mine > 1 {
			delete(s.tokens, s.all[i])
		}
	}
	s.tokens[g.Access] = user
	s.all = append(s.all, g.Access)
	return g.Access
}

// recorded is a way to Redis that keeps what is said to it.
type recorded struct {
	addr string

	mu   sync.Mutex
	said bytes.Buffer
}

func record(t *testing.T, store string) *recorded {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return recordAt(t, l, store)
}

// recordAt is record for clients that come to this listener.
func recordAt(t *testing.T, l net.Listener, store string) *recorded {
	t.Helper()
	to, err := url.Parse(store)
	if err != nil {
		t.Fatal(err)
	}
	r := &recorded{addr: l.Addr().String()}
	var work sync.WaitGroup
	t.Cleanup(func() {
		_ = l.Close()
		work.Wait()
	})
	work.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", to.Host)
			if err != nil {
				_ = client.Close()
				continue
			}
			pass := func(to, from net.Conn, also io.Writer) {
				_, _ = io.Copy(io.MultiWriter(to, also), from)
				_ = to.Close()
				_ = from.Close()
			}
			work.Go(func() { pass(server, client, r) })
			work.Go(func() { pass(client, server, io.Discard) })
		}
	})
	return r
}

// Write implements io.Writer.
func (r *recorded) Write(b []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.said.Write(b)
}

// count is how often something was said to Redis.
func (r *recorded) count(text string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return bytes.Count(r.said.Bytes(), []byte(text))
}

// callResumable makes a task of the tool "wait", and returns once the record says where its call can
// be resumed. The event that says so is the only one of the call until the tool ends.
func callResumable(t *testing.T, way *recorded, c *taskclient.Client, args map[string]any) *taskclient.Task {
	t.Helper()
	const checkpoint = `"last":"`
	before := way.count(checkpoint)
	task := callTask(t, c, "wait", args)
	eventually(t, "the record says where the call can be resumed", func() error {
		if way.count(checkpoint) == before {
			return errNotYet
		}
		return nil
	})
	return task
}

// behind is the configuration of a gateway in front of the server, whose way to Redis is recorded.
func behind(t *testing.T, s *signedIn, way *recorded) []string {
	t.Helper()
	return configured(t, fmt.Sprintf(`
store: redis://%s/0
heartbeat: 1s
log: {level: debug}
public_url: http://127.0.0.1:1
state_keys: ["AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE="]
upstreams:
  - {name: slow, path: /mcp, url: %q, auth: {passthrough: {audiences: [%q]}}, defaults: {tasks: always, poll_interval: 100ms}}
`, way.addr, s.URL, s.provider.ClientID))
}

// showing is a client that shows a token.
func showing(g *gateway, token string) *taskclient.Client {
	return &taskclient.Client{URL: g.url, Tasks: true, HTTP: &http.Client{Transport: withKey(token)}}
}

// Tasks of users whose tokens are refreshed a thousand times stay theirs, on two replicas of which
// one is killed; and what that one ran goes on with what the users show to the other one. No token
// gets into Redis, or into a log, a span or a metric.
func TestRefreshesWhileTasksRun(t *testing.T) {
	t.Parallel()
	server, redis := startSignedInServer(t), redistest.Start(t)
	way := record(t, redis.URL())
	config, signals := behind(t, server, way), otlptest.Start(t)
	killed, last := startWatched(t, signals, config...), startWatched(t, signals, config...)
	replicas := []*gateway{killed.gateway, last.gateway}
	users := []string{"alice", "bob", "carol", "dave", "erin"}
	tasks := map[string][]string{}
	begin := func(user string, at *gateway) {
		task := callTask(t, showing(at, server.refresh(user)), "wait", map[string]any{"say": user})
		tasks[user] = append(tasks[user], task.ID)
	}
	for i := range 4 {
		begin("late", replicas[0]) // whom the other one does not know
		for _, user := range users {
			begin(user, replicas[i%2])
		}
	}
	const refreshes = 1000
	for i := range refreshes {
		if i == refreshes/2 {
			killed.Kill()
			replicas = replicas[1:]
		}
		user := users[i%len(users)]
		id, client := tasks[user][i/len(users)%4], showing(replicas[i%len(replicas)], server.refresh(user))
		if task, err := client.Get(t.Context(), id); err != nil || task.Status != "working" {
			t.Fatalf("refresh %d: %+v, %v", i, task, err)
		}
	}
	const waits = "waits for its owner"
	eventually(t, "the tasks wait whose owner has not been there", func() error {
		if way.count(waits) < len(tasks["late"]) {
			return errNotYet
		}
		return nil
	})
	for _, id := range tasks["late"] {
		task, err := showing(last.gateway, server.refresh("late")).Get(t.Context(), id) // which ends the wait
		if err != nil || task.Status != "working" {
			t.Errorf("a task whose owner has not been there: %+v, %v", task, err)
		}
	}
	close(server.proceed)
	var refused *taskclient.Error
	for user, ids := range tasks {
		for _, id := range ids {
			end := waitFor(t, showing(last.gateway, server.refresh(user)), id, "completed")
			if got := textOf(t, end.Result); got != user {
				t.Errorf("the task of %s says %q", user, got)
			}
			for name, token := range map[string]string{"another": server.refresh("mallory"), "nobody": "", "who cannot be verified": "x"} {
				if _, err := showing(last.gateway, token).Get(t.Context(), id); !errors.As(err, &refused) || refused.Code != -32602 || !strings.HasPrefix(refused.Message, "unknown task") {
					t.Errorf("the task of %s to %s: %v", user, name, err)
				}
			}
		}
	}
	if len(server.strays) > 0 {
		t.Errorf("the server was asked without a good token: %v", server.strays)
	}
	signatures := map[string]string{}
	for i, token := range server.all {
		signature := token[strings.LastIndex(token, ".")+1:]
		signatures[fmt.Sprint("token ", i)] = signature
		if way.count(signature) > 0 || killed.written.count(signature) > 0 {
			t.Error("a token was sent to Redis, or is in the log")
		}
	}
	last.tellsNothingOf(t, signatures)
	if way.count("slow") == 0 {
		t.Error("nothing of the traffic to Redis was seen")
	}
}
