package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"taskgate/gateway/operator"
)

// adminTimeout bounds one request to the admin listener, at both ends.
const adminTimeout = 10 * time.Second

// admin is the listener for operators and their tools, apart from the public one: it serves until the
// process has drained, and shows things that are for operators only. The interface of package operator
// and /reload ask for a key. It is nil if the configuration has no admin address.
type admin struct {
	listener net.Listener
	http     *http.Server
}

// newAdmin opens the listener of a server at addr; nil if addr is empty. page is /metrics; it may be nil.
func newAdmin(ctx context.Context, addr string, s *server, page http.Handler) (*admin, error) {
	if addr == "" {
		return nil, nil
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("admin: %w", err)
	}
	a := &admin{http: &http.Server{
		Handler:           adminHandler(s.ready, s.operators.handler.Guard("configuration reloaded by an operator", s.reloader.handler()), page, s.operators.handler, isLoopback(addr)),
		ReadHeaderTimeout: readHeaderTimeout,
		ReadTimeout:       adminTimeout,
		WriteTimeout:      adminTimeout,
		IdleTimeout:       idleTimeout,
		ErrorLog:          slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}}
	a.listener = guardHeads(s.tel.metrics, a.http, l)
	return a, nil
}

// adminHandler is the route table. On loopback it answers only a loopback Host: otherwise a web page
// could read it by a name of its own that resolves to 127.0.0.1 (protocol.md Z10). Health checks of HAProxy
// name no Host.
func adminHandler(ready *readiness, reload, page, operators http.Handler, local bool) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		// The answer itself is the message, because other faults would survive a restart.
		writeStatus(w, http.StatusOK, map[string]string{"status": "ok"})
	})
	mux.Handle("GET /readyz", ready)
	mux.Handle("POST /reload", reload)
	if page != nil {
		mux.Handle("GET /metrics", page)
	}
	for _, path := range operator.Paths() {
		mux.Handle(path, operators)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if local && r.Host != "" && !isLoopback(r.Host) && !isLoopback(r.Host+":80") {
			http.Error(w, "this Host is not served", http.StatusForbidden)
			return
		}
		mux.ServeHTTP(w, r)
	})
}

func (a *admin) serveAdmin() error {
	if a == nil {
		return nil
	}
	return ignoreExpected(a.http.Serve(a.listener), http.ErrServerClosed)
}

func (a *admin) close() error {
	if a == nil {
		return nil
	}
	err := a.http.Close()
	_ = a.listener.Close() // http.Server closes only listeners that it has served
	return err
}
