package chaos

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"taskgate/internal/proc"
	"taskgate/internal/programtest"
)

// serverVar has this program be the server of TestProcessesKilled, over stdio.
const serverVar = "TASKGATE_CHAOS_SERVER"

const (
	// processOwners are the principals, and processClients how many clients each has: ten in all.
	processOwners = 3
	// processKills is how many servers of each owner are killed that is not spared. More in a row
	// would pause its starts for longer than the test.
	processKills = 3
)

// processClients are how many clients each owner has.
var processClients = [processOwners]int{4, 3, 3}

// marker is a server with one tool, which says its mark in every way there is and answers with it
// and the name of its session.
func marker(name func(*sdk.ServerSession) string) *sdk.Server {
	server := sdk.NewServer(&sdk.Implementation{Name: "marker", Version: "1"}, nil)
	server.AddTool(&sdk.Tool{Name: "mark", InputSchema: json.RawMessage(`{"type":"object"}`)}, func(ctx context.Context, r *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		var a struct{ Mark string }
		if err := json.Unmarshal(r.Params.Arguments, &a); err != nil {
			return nil, err
		}
		fmt.Fprintf(os.Stderr, "bad row in the file of %s\n", a.Mark)
		for i := range 5 {
			_ = r.Session.Log(ctx, &sdk.LoggingMessageParams{Level: "info", Data: a.Mark})
			_ = r.Session.NotifyProgress(ctx, &sdk.ProgressNotificationParams{ProgressToken: r.Params.GetProgressToken(), Progress: float64(i + 1), Message: a.Mark})
			select {
			case <-time.After(20 * time.Millisecond):
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
		return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: a.Mark + " " + name(r.Session)}}}, nil
	})
	return server
}

// serveMarker is that server in a process of its own, which says the pid of that.
func serveMarker() {
	_ = marker(func(*sdk.ServerSession) string { return fmt.Sprint(os.Getpid()) }).Run(context.Background(), &sdk.StdioTransport{})
}

// markers is how such servers are reached, and killed by what they have answered.
type markers struct {
	config string
	kill   func(name string)
}

// overPipes has each session be a process.
func overPipes(t *testing.T) markers {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return markers{
		config: fmt.Sprintf(`{name: it, path: /mcp, command: %q, env: {%s: "1"}, era: legacy, max_processes: 64}`, self, serverVar),
		kill: func(name string) {
			var pid int
			if _, err := fmt.Sscan(name, &pid); err == nil {
				if p, err := os.FindProcess(pid); err == nil {
					_ = p.Kill() // it may have ended
				}
			}
		},
	}
}

// overSSE has each session be a connection, which is broken.
func overSSE(t *testing.T) markers {
	var mu sync.Mutex
	names, sessions := map[*sdk.ServerSession]string{}, map[string]*sdk.ServerSession{}
	server := marker(func(s *sdk.ServerSession) string {
		mu.Lock()
		defer mu.Unlock()
		if names[s] == "" {
			names[s] = fmt.Sprint("connection-", len(names))
			sessions[names[s]] = s
		}
		return names[s]
	})
	addr := serve(t, sdk.NewSSEHandler(func(*http.Request) *sdk.Server { return server }, nil))
	return markers{
		config: fmt.Sprintf(`{name: it, path: /mcp, url: "http://%s", transport: sse}`, addr),
		kill: func(name string) {
			mu.Lock()
			s := sessions[name]
			mu.Unlock()
			_ = s.Close()
		},
	}
}

// marked is one client, which calls the tool until it is told to stop.
type marked struct {
	t     *testing.T
	name  string
	owner int
	calm  bool // nothing of its owner's is killed

	session *sdk.ClientSession

	mu      sync.Mutex
	server  string // the one that has answered last
	answers int
	failed  int
	foreign []string // what it has heard that is not its own
}

// hears takes what the client is told.
func (c *marked) hears(text string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !strings.HasPrefix(text, c.name) {
		c.foreign = append(c.foreign, text)
	}
}

// processKey is that of an owner.
func processKey(owner int) string { return fmt.Sprintf("key-number-%d-of-the-processes", owner) }

func newMarked(t *testing.T, url string, owner, number int) *marked {
	t.Helper()
	c := &marked{t: t, name: fmt.Sprintf("client-%d-%d;", owner, number), owner: owner}
	client := sdk.NewClient(&sdk.Implementation{Name: "chaos", Version: "1"}, &sdk.ClientOptions{
		ProgressNotificationHandler: func(_ context.Context, r *sdk.ProgressNotificationClientRequest) { c.hears(r.Params.Message) },
		LoggingMessageHandler:       func(_ context.Context, r *sdk.LoggingMessageRequest) { c.hears(fmt.Sprint(r.Params.Data)) },
	})
	var err error
	c.session, err = client.Connect(t.Context(), &sdk.StreamableClientTransport{Endpoint: url, HTTPClient: &http.Client{Transport: &transport{token: processKey(owner)}}},
		&sdk.ClientSessionOptions{ProtocolVersion: "2025-11-25"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.session.Close() })
	if err := c.session.SetLoggingLevel(t.Context(), &sdk.SetLoggingLevelParams{Level: "debug"}); err != nil {
		t.Fatal(err)
	}
	return c
}

// callLimit bounds a call of a tenth of a second: only one that waits for others takes as long.
const callLimit = 20 * time.Second

// call makes one call, and reports whether it was answered.
func (c *marked) call(ctx context.Context, number int) bool {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	params := &sdk.CallToolParams{Name: "mark", Arguments: map[string]any{"mark": c.name}}
	params.SetProgressToken(fmt.Sprint(c.name, number))
	r, err := c.session.CallTool(ctx, params)
	if err == nil && r.IsError {
		text, _ := json.Marshal(r.Content)
		err = fmt.Errorf("%s", text)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil {
		mark, server, _ := strings.Cut(r.Content[0].(*sdk.TextContent).Text, " ")
		if mark != c.name {
			c.t.Errorf("%s has the answer of %s", c.name, mark)
		}
		c.server, c.answers = server, c.answers+1
		return true
	}
	c.failed++
	if c.calm || ctx.Err() != nil {
		c.t.Errorf("%s: %v", c.name, err)
	}
	// The pause of an owner's starts is explained by the process that it is for, which is the owner's.
	if text := strings.ReplaceAll(err.Error(), fmt.Sprintf("client-%d-", c.owner), ""); strings.Contains(text, "client-") {
		c.t.Errorf("%s is told of another owner: %v", c.name, err)
	}
	return false
}

// TestProcessesKilled: ten clients of three owners use servers over stdio, and over HTTP+SSE, that are
// killed at random, but for those of one owner. Nobody hears, waits for, or fails by another.
func TestProcessesKilled(t *testing.T) {
	programtest.Long(t)
	for name, over := range map[string]func(*testing.T) markers{"stdio": overPipes, "HTTP+SSE": overSSE} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			checkKilled(t, over(t))
		})
	}
}

func checkKilled(t *testing.T, m markers) {
	t.Helper()
	random := rand.New(rand.NewPCG(*seed, 27))
	spared := random.IntN(processOwners)
	var clients []*marked
	url := startMarkers(t, m)
	for owner, n := range processClients {
		for i := range n {
			c := newMarked(t, url, owner, i)
			c.calm = owner == spared
			clients = append(clients, c)
		}
	}
	ctx, stop := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for _, c := range clients {
		all.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				if !c.call(t.Context(), i) {
					select { // as a client that is told to come again
					case <-time.After(200 * time.Millisecond):
					case <-ctx.Done():
					}
				}
			}
		})
	}
	killAtRandom(clients, spared, random, m)
	stop()
	all.Wait()
	for _, c := range clients {
		for i := 0; !c.call(t.Context(), 1_000_000+i); i++ { // in the end each is answered, after the pauses of its owner
			if i > 100 {
				t.Fatalf("%s is not answered any more", c.name)
			}
			<-time.After(200 * time.Millisecond)
		}
		t.Logf("%s %d answers, %d failures, spared: %t", c.name, c.answers, c.failed, c.calm)
		if len(c.foreign) > 0 {
			t.Errorf("%s hears %q", c.name, c.foreign)
		}
	}
}

// killAtRandom kills servers of all owners but one, each time of a client that was answered.
func killAtRandom(clients []*marked, spared int, random *rand.Rand, m markers) {
	for left := [processOwners]int{processKills, processKills, processKills}; ; {
		left[spared] = 0
		sum := 0
		for _, n := range left {
			sum += n
		}
		if sum == 0 {
			return
		}
		<-time.After(time.Duration(100+random.IntN(800)) * time.Millisecond)
		c := clients[random.IntN(len(clients))]
		c.mu.Lock()
		server := c.server
		c.server = ""
		c.mu.Unlock()
		if left[c.owner] > 0 && server != "" {
			left[c.owner]--
			m.kill(server)
		}
	}
}

// startMarkers runs a gateway in front of such servers, and returns where it serves them.
func startMarkers(t *testing.T, m markers) string {
	t.Helper()
	addr, err := proc.FreeAddr()
	if err != nil {
		t.Fatal(err)
	}
	var keys []string
	for owner := range processOwners {
		keys = append(keys, fmt.Sprintf("owner%d:%x", owner, sha256.Sum256([]byte(processKey(owner)))))
	}
	file := filepath.Join(t.TempDir(), "taskgate.yaml")
	text := fmt.Sprintf("listen: %s\nstore: embedded\nauth: {keys: [%s]}\nupstreams: [%s]\n", addr, strings.Join(keys, ", "), m.config)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	p, err := startProcess(proc.Command{Name: "taskgate", Path: gatewayProgram(), Args: []string{"serve", "--config", file}}, addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.Stop(10 * time.Second)
		if t.Failed() || strings.Contains(p.Output(), "DATA RACE") {
			t.Errorf("output:\n%s", p.Output())
		}
	})
	return "http://" + addr + "/mcp"
}
