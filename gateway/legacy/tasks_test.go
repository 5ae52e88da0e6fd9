package legacy_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"taskgate/gateway"
	"taskgate/gateway/config"
	"taskgate/gateway/upstream"
	"taskgate/internal/wiretest"
	"taskgate/redisstore"
	"taskgate/shim"
)

// world is one store, two replicas over it that make tasks, and a client of theirs, on the clock of a bubble.
type world struct {
	t        *testing.T
	store    shim.Store
	sessions *faultySessions
	asks     func(shim.Asker) shim.Asker // stands between the shim and the stream of a call; nil for nothing
	config   *config.Config              // of both replicas
	a, b     *legacyServer
	c        *taskClient
}

// asking is a shim whose streams of calls are replaced.
type asking struct {
	*shim.Shim
	asks func(shim.Asker) shim.Asker
}

func (a asking) Call(ctx context.Context, c shim.Call) (shim.Answered, error) {
	if s, ok := c.Stream.(shim.Asker); ok {
		c.Stream = a.asks(s)
	}
	return a.Shim.Call(ctx, c)
}

// inBubble runs a test of this name in virtual time.
func inBubble(t *testing.T, name string, run func(*testing.T)) {
	t.Run(name, func(t *testing.T) { synctest.Test(t, run) })
}

// newWorld opens the store.
func newWorld(t *testing.T) *world {
	t.Helper()
	store, err := redisstore.Open(t.Context(), "embedded", redisstore.Options{ClockTTL: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	return &world{t: t, store: store, sessions: &faultySessions{
		Sessions: &together{Sessions: store.Sessions(100, time.Hour)}, held: make(chan chan struct{}, 1),
	}}
}

// start starts the replicas, and a session at the first one.
func (w *world) start(script upstreamScript, c *config.Config, capabilities string) *world {
	w.t.Helper()
	w.config, w.a, w.b = c, w.gateway("a", script, c), w.gateway("b", script, c)
	w.c = newClient(w.t, w.a, capabilities)
	return w
}

// newDraftWorld has a server whose tools say something on the way, and a client that declares this.
func newDraftWorld(t *testing.T, capabilities string) *world {
	t.Helper()
	return newWorld(t).start(draftScript(), draftConfig(t), capabilities)
}

// newAskWorld has a server whose tools ask, and a client that can be asked.
func newAskWorld(t *testing.T, change func(*config.Config)) *world {
	t.Helper()
	return newWorld(t).start(askScript(), newConfig(change), `"elicitation":{}`)
}

// askScript is a server whose tools ask, or take their time.
func askScript() upstreamScript {
	return upstreamScript{Era: "legacy", Raw: json.RawMessage(`{"capabilities":{"tools":{}}}`), Replies: map[string]scriptReply{
		"tools/call ask":     {Asks: []string{"who?"}},
		"tools/call forever": {Blocks: true},
		"tools/call late":    {Asks: []string{"who?"}, Progress: []json.RawMessage{[]byte(`{}`)}, Every: "60s"},
		"tools/call slow":    {After: "60s", Result: json.RawMessage(`{"content":[]}`)},
		"tools/call twice":   {Asks: []string{"who?", "why?"}},
	}}
}

// gateway starts a replica that ends with the test. All its upstreams are one server.
func (w *world) gateway(name string, script upstreamScript, c *config.Config) *legacyServer {
	w.t.Helper()
	up := &scriptedUpstream{script: script}
	servers, clients := map[string]shim.Server{}, map[string]upstream.Client{}
	for _, u := range c.Upstreams {
		clients[u.Name] = up
		servers[u.Name] = shim.Server{Upstream: up, Queue: 10, Policy: func(tool string) shim.Policy {
			p := u.Tool(tool)
			return shim.Policy{Tasks: shim.Mode(p.Tasks), Grace: p.Grace, TTL: p.TTL,
				PollInterval: p.PollInterval, InputTimeout: p.InputTimeout, Timeout: p.Timeout, FoldProgress: p.Progress != config.ProgressOff, Partials: shim.NewPartials(p.Progress == config.ProgressContent)}
		}}
	}
	sh, err := shim.New(shim.Options{
		Replica: shim.Replica(name), Store: w.store, Logger: slog.New(slog.DiscardHandler), Servers: servers,
	})
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- sh.Run(ctx) }()
	w.t.Cleanup(func() {
		stop()
		if err := <-done; !errors.Is(err, context.Canceled) {
			w.t.Error(err)
		}
	})
	return startLegacyServer(w.t, up, sh, c, func(o *gateway.Options) {
		if o.Sessions, o.Upstreams = w.sessions, clients; w.asks != nil {
			o.Shim = asking{sh, w.asks}
		}
	})
}

func (p *legacyPlay) configure(yaml []byte) {
	c, err := config.Parse("config.yaml", yaml, func(string) (string, bool) { return "", false })
	if err != nil {
		p.t.Fatal(err)
	}
	p.config = c
}

// serve starts the gateway that a transcript is about.
func (p *legacyPlay) serve(script upstreamScript) {
	if p.config == nil {
		p.server = newLegacyServer(p.t, script, nil)
	} else {
		p.server = newWorld(p.t).gateway("r", script, p.config)
	}
	p.handler = p.server.Handler()
}

// sendModern serves a request of a modern client: perhaps headers and a blank
// line, then the body.
func (p *legacyPlay) sendModern(text string) string {
	head, body, ok := strings.Cut(text, "\n\n")
	if !ok {
		head, body = "", text
	}
	r, _, msg := wiretest.ParseRequest(p.t, strings.TrimSpace("POST /up/mcp\n"+head)+"\n\n"+p.revealed(body)+"\n")
	rec := httptest.NewRecorder()
	p.handler.ServeHTTP(rec, r)
	wiretest.CheckSchemas(p.t, msg, "", rec)
	return p.hidden(wiretest.ResponseText(rec))
}

// secret is something random in a transcript, and what stands for it.
type secret struct{ text, name string }

// secrets are the patterns of what is random.
var secretPatterns = []struct {
	letter  string
	pattern *regexp.Regexp
}{
	{"t", regexp.MustCompile(`"taskId\\?":\\?"([0-9a-f-]+)`)}, // also inside a text
	{"l", regexp.MustCompile(`(?m)^id: ([A-Z2-7]{16})\.`)},
	{"c", regexp.MustCompile(`"nextCursor":"([^"]+)"`)},
}

// hidden replaces what is random by names. Without tasks nothing is.
func (p *legacyPlay) hidden(text string) string {
	if p.config == nil {
		return text
	}
	for _, s := range secretPatterns {
		for _, m := range s.pattern.FindAllStringSubmatch(text, -1) {
			p.keep(s.letter, m[1])
		}
	}
	for _, s := range p.secrets {
		text = strings.ReplaceAll(text, s.text, s.name)
	}
	return text
}

// keep gives a random text the next name of its kind, unless it has one.
func (p *legacyPlay) keep(letter, text string) {
	n := 1
	for _, s := range p.secrets {
		if s.text == text {
			return
		}
		if strings.HasPrefix(s.name, "${"+letter) {
			n++
		}
	}
	p.secrets = append(p.secrets, secret{text, fmt.Sprintf("${%s%d}", letter, n)})
}

// revealed puts what is random back.
func (p *legacyPlay) revealed(text string) string {
	for _, s := range p.secrets {
		text = strings.ReplaceAll(text, s.name, s.text)
	}
	return text
}
