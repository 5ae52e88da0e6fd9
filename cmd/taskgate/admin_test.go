package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"taskgate/gateway/config"
)

// patience is how long a real process part may take before a test gives up.
const patience = 20 * time.Second

// logged collects what a server logs.
type logged struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// running is a gateway process in this one.
type running struct {
	t    *testing.T
	s    *server
	log  *logged
	stop context.CancelFunc // the first SIGTERM
	done chan error
}

func runServer(t *testing.T, url string, change func(*config.Config), tune ...func(*server)) *running {
	t.Helper()
	c := config.FromFlags(url)
	c.Listen, c.Admin, c.DrainDelay, c.Store = "127.0.0.1:0", "127.0.0.1:0", 0, config.StoreEmbedded
	if change != nil {
		change(c)
	}
	ctx, stop := context.WithCancel(context.Background())
	t.Cleanup(stop)
	r := &running{t: t, log: &logged{}, stop: stop, done: make(chan error, 1)}
	r.s = newServer(c, r.log)
	for _, one := range tune {
		one(r.s)
	}
	if err := r.s.openServer(ctx); err != nil {
		t.Fatal(err)
	}
	go func() { r.done <- r.s.serveUntilEnd(ctx) }()
	return r
}

// ends waits for the end of the process.
func (r *running) ends() {
	r.t.Helper()
	select {
	case err := <-r.done:
		if err != nil {
			r.t.Error(err)
		}
	case <-time.After(patience):
		r.t.Fatal("it does not end")
	}
}

// ready asks the admin listener.
func (r *running) ready() (int, report) {
	r.t.Helper()
	resp, err := http.Get("http://" + r.s.admin.listener.Addr().String() + "/readyz")
	if err != nil {
		r.t.Fatal(err)
	}
	defer resp.Body.Close()
	var got report
	if err := json.NewDecoder(resp.Body).Decode(&got); err != nil {
		r.t.Error(err)
	}
	return resp.StatusCode, got
}

// becomes asks until the answer has this status.
func (r *running) becomes(status int) report {
	r.t.Helper()
	deadline := time.After(patience)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		got, body := r.ready()
		if got == status {
			return body
		}
		select {
		case <-tick.C:
		case <-deadline:
			r.t.Fatalf("still %d: %+v", got, body)
		}
	}
}

// post sends a modern request to the public listener.
func (r *running) post(method, name string) (int, string) {
	body := `{"jsonrpc":"2.0","id":1,"method":"` + method + `","params":{"name":"` + name + `","arguments":{},"taskId":"` + name + `","_meta":{` +
		`"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{"extensions":{"io.modelcontextprotocol/tasks":{}}}}}}`
	q, err := http.NewRequest("POST", "http://"+r.s.listener.Addr().String()+"/mcp", strings.NewReader(body))
	if err != nil {
		return 0, err.Error()
	}
	for key, value := range map[string]string{"Content-Type": "application/json", "Accept": "application/json, text/event-stream",
		"Mcp-Protocol-Version": "2026-07-28", "Mcp-Method": method, "Mcp-Name": name} {
		q.Header.Set(key, value)
	}
	resp, err := http.DefaultClient.Do(q)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	b, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, string(b)
}

// modernUpstream is a server whose tool waits until it is let go.
func modernUpstream(t *testing.T) (web *httptest.Server, called, letGo chan struct{}) {
	called, letGo = make(chan struct{}, 1), make(chan struct{})
	web = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var q struct {
			ID     json.RawMessage `json:"id"`
			Method string          `json:"method"`
		}
		_ = json.NewDecoder(r.Body).Decode(&q) // of a DELETE or GET there is nothing to be read
		result := `{"resultType":"complete","content":[]}`
		switch q.Method {
		case "server/discover":
			result = `{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{"tools":{}}}`
		case "tools/call":
			called <- struct{}{}
			<-letGo
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"jsonrpc":"2.0","id":`+string(q.ID)+`,"result":`+result+`}`)
	}))
	t.Cleanup(web.Close)
	return web, called, letGo
}

// TestReadyWhileDraining: from the first signal on the process is not ready, and
// says so for as long as it drains, while the public listener serves on.
func TestReadyWhileDraining(t *testing.T) {
	web, called, letGo := modernUpstream(t)
	r := runServer(t, web.URL+"/mcp", nil)
	if status, got := r.ready(); status != http.StatusOK || !got.Ready || !got.Upstreams["mcp"].Reachable {
		t.Errorf("at first: %d %+v", status, got)
	}
	answered := make(chan string, 1)
	go func() {
		_, body := r.post("tools/call", "slow")
		answered <- body
	}()
	<-called

	r.stop()
	if status, got := r.ready(); status != http.StatusServiceUnavailable || !got.Draining || !got.Store.Reachable {
		t.Errorf("draining: %d %+v", status, got)
	}
	if resp, err := http.Get("http://" + r.s.admin.listener.Addr().String() + "/healthz"); err != nil || resp.StatusCode != http.StatusOK {
		t.Errorf("healthz while draining: %v %v", resp, err)
	} else {
		resp.Body.Close()
	}
	if status, body := r.post("tasks/get", "5b0d3d2e-8a37-4b1e-9a57-0d9a3a1c9f00"); status != http.StatusOK || !strings.Contains(body, "unknown task") {
		t.Errorf("the public listener while draining: %d %s", status, body)
	}
	close(letGo)
	if body := <-answered; !strings.Contains(body, `"content":[]`) {
		t.Errorf("the call: %s", body)
	}
	r.ends()
	if _, err := http.Get("http://" + r.s.admin.listener.Addr().String() + "/healthz"); err == nil {
		t.Error("the admin listener has outlived the process")
	}
}

// TestReadyFollowsTheUpstream: a server that goes away shows in a moment.
func TestReadyFollowsTheUpstream(t *testing.T) {
	web, _, _ := modernUpstream(t)
	r := runServer(t, web.URL+"/mcp", nil)
	r.becomes(http.StatusOK)
	web.Close()
	if got := r.becomes(http.StatusServiceUnavailable); got.Upstreams["mcp"].Error == "" || !got.Store.Reachable || got.Draining {
		t.Errorf("%+v", got)
	}
	r.stop()
	r.ends()
}

// TestAdminOffAndTaken: by default there is no such listener, and one that cannot
// be opened is a failure to start.
func TestAdminOffAndTaken(t *testing.T) {
	r := runServer(t, "http://127.0.0.1:1/mcp", func(c *config.Config) { c.Admin = "" })
	if r.s.admin != nil {
		t.Error("there is one")
	}
	c := config.FromFlags("http://127.0.0.1:1/mcp")
	c.Listen, c.Store, c.Admin = "127.0.0.1:0", config.StoreEmbedded, r.s.listener.Addr().String()
	var log logged
	if err := newServer(c, &log).openServer(t.Context()); err == nil || !strings.Contains(err.Error(), "admin: ") {
		t.Errorf("error: %v", err)
	}
	if text := log.String(); strings.Contains(text, "msg=stopped") {
		t.Errorf("what never served has stopped: %s", text)
	}
	r.stop()
	r.ends()
	if text := r.log.String(); !strings.HasSuffix(text, "msg=stopped\n") {
		t.Error(text)
	}
}

// TestOpenDoorIsLogged: to let everybody in from everywhere is worth a word.
func TestOpenDoorIsLogged(t *testing.T) {
	keys := config.Auth{Keys: []config.BearerKey{config.BearerKey("alice:" + config.HashKey("a long and random key"))}}
	for name, c := range map[string]struct {
		listen string
		auth   config.Auth
		want   bool
	}{
		"everywhere":           {":0", config.Auth{}, true},
		"everywhere with keys": {":0", keys, false},
		"loopback":             {"127.0.0.1:0", config.Auth{}, false},
	} {
		t.Run(name, func(t *testing.T) {
			r := runServer(t, "http://127.0.0.1:1/mcp", func(cfg *config.Config) { cfg.Listen, cfg.Auth = c.listen, c.auth })
			r.stop()
			r.ends()
			if got := strings.Contains(r.log.String(), "anybody who can connect may call"); got != c.want {
				t.Errorf("warned: %t\n%s", got, r.log)
			}
		})
	}
}

// Once a process is to stop, its answers end their connections, so that clients which keep
// theirs find another replica before this one refuses them.
func TestPartingConnections(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	h := partConnections(ctx, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusAccepted) }))
	for _, want := range []string{"", "close"} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/mcp", nil))
		if got := w.Header().Get("Connection"); got != want || w.Code != http.StatusAccepted {
			t.Errorf("%d, connection %q, want %q", w.Code, got, want)
		}
		stop()
	}
}
