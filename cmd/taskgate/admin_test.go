package main

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"taskgate/gateway/config"
)

// TestReadyWhileDraining: from the first signal on the process is not ready, and
// says so for as long as it drains, while the public listener serves on.
func TestReadyWhileDraining(t *testing.T) {
	url, called, letGo := named(t, "up")
	r := runServer(t, url, nil)
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
	if status, body := r.asOperator("GET", "/healthz", ""); status != http.StatusOK {
		t.Errorf("healthz while draining: %d %s", status, body)
	}
	if status, body := r.post("tasks/get", "5b0d3d2e-8a37-4b1e-9a57-0d9a3a1c9f00"); status != http.StatusOK || !strings.Contains(body, "unknown task") {
		t.Errorf("the public listener while draining: %d %s", status, body)
	}
	letGo()
	if body := <-answered; !strings.Contains(body, `"text":"up `) {
		t.Errorf("the call: %s", body)
	}
	r.ends()
	if _, err := http.Get("http://" + r.s.admin.listener.Addr().String() + "/healthz"); err == nil {
		t.Error("the admin listener has outlived the process")
	}
}

// TestReadyFollowsTheUpstream: a server that goes away shows in a moment.
func TestReadyFollowsTheUpstream(t *testing.T) {
	t.Parallel()
	web := httptest.NewServer(nil)
	r := runServer(t, web.URL+"/mcp", nil)
	r.becomes(http.StatusOK)
	web.Close()
	if got := r.becomes(http.StatusServiceUnavailable); got.Upstreams["mcp"].Error == "" || !got.Store.Reachable || got.Draining {
		t.Errorf("%+v", got)
	}
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
