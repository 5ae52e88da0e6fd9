package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"taskgate/internal/proc"
	"taskgate/internal/taskclient"
)

func (r *redisServer) url() string { return "redis://" + r.addr + "/0" }

func (r *redisServer) start(ctx context.Context) (err error) {
	_, port, _ := net.SplitHostPort(r.addr)
	r.process, err = proc.Start(proc.Command{Name: "redis-server", Path: "redis-server", Dir: r.dir, Args: []string{
		"--bind", "127.0.0.1", "--port", port, "--appendonly", "yes", "--appendfsync", "always", "--save", "", "--dir", r.dir, "--maxmemory-policy", "noeviction",
	}})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return r.process.WaitListening(ctx, r.addr)
}

// followTask calls the tool, and asks for its task until it has ended, whatever happens to single requests.
func followTask(ctx context.Context, c *taskclient.Client, args any) (string, error) {
	result, task, err := c.CallTool(ctx, "try_work", args)
	if err != nil {
		return "", err
	}
	for task != nil && !task.Ended() {
		pause(ctx, time.Duration(max(task.PollIntervalMs, 100))*time.Millisecond)
		now, err := c.Get(ctx, task.ID)
		if ctx.Err() != nil {
			return "", ctx.Err()
		}
		if err == nil {
			task, result = &now, now.Result
		}
	}
	if task != nil && task.Status != taskclient.Completed {
		return task.Status + ": " + task.StatusMessage, nil
	}
	var r struct {
		Content []struct{ Text string }
	}
	if err := json.Unmarshal(result, &r); err != nil || len(r.Content) == 0 {
		return string(result), err
	}
	return r.Content[0].Text, nil
}

// tcpWire passes connections on, until it cuts them.
type tcpWire struct {
	mu        sync.Mutex
	listeners []net.Listener
	open      map[net.Conn]bool
}

func newTCPWire() *tcpWire { return &tcpWire{open: map[net.Conn]bool{}} }

// listen passes on what comes to the address that it returns.
func (w *tcpWire) listen(ctx context.Context, to func() string) (string, error) {
	addr, err := proc.FreeAddr()
	if err != nil {
		return "", err
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return "", err
	}
	w.mu.Lock()
	w.listeners = append(w.listeners, l)
	w.mu.Unlock()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return // closed
			}
			go w.pass(ctx, c, to())
		}
	}()
	return addr, nil
}

func (w *tcpWire) pass(ctx context.Context, c net.Conn, addr string) {
	var dialer net.Dialer
	s, err := dialer.DialContext(ctx, "tcp", addr)
	if err != nil {
		c.Close()
		return
	}
	w.mu.Lock()
	w.open[c], w.open[s] = true, true
	w.mu.Unlock()
	var both sync.WaitGroup
	copyTo := func(to, from net.Conn) {
		_, _ = io.Copy(to, from)
		_ = to.(*net.TCPConn).CloseWrite()
	}
	both.Go(func() { copyTo(s, c) })
	both.Go(func() { copyTo(c, s) })
	both.Wait()
	w.mu.Lock()
	delete(w.open, c)
	delete(w.open, s)
	w.mu.Unlock()
	c.Close()
	s.Close()
}

// cut resets all connections.
func (w *tcpWire) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for c := range w.open {
		_ = c.(*net.TCPConn).SetLinger(0)
		c.Close()
	}
}

func (w *tcpWire) close() {
	w.mu.Lock()
	for _, l := range w.listeners {
		l.Close()
	}
	w.mu.Unlock()
	w.cut()
}

// addReplica starts a second gateway, and a balancer in front of both.
func (st *stage) addReplica(ctx context.Context) (err error) {
	if st.second, err = newLab(st.o, st.Peer); err != nil {
		return err
	}
	st.second.redis, st.second.events, st.second.serverAddr, st.second.server = st.lab.redis, st.events, st.serverAddr, st.server
	if err := st.second.startGateway(ctx); err != nil {
		return err
	}
	if err := st.second.ready(ctx); err != nil {
		return err
	}
	b := &sticky{addrs: []string{st.addr, st.second.addr}, sessions: map[string]int{}}
	addr, err := proc.FreeAddr()
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	st.wire.listeners = append(st.wire.listeners, l)
	server := &http.Server{Handler: b, ReadHeaderTimeout: time.Minute, ErrorLog: log.New(io.Discard, "", 0)}
	go func() { _ = server.Serve(l) }() // until the listener is closed
	st.front = addr
	return nil
}

// sticky is a balancer that keeps each session at the replica that began it, and goes to the other one where a replica
// does not listen or answers 503.
type sticky struct {
	addrs    []string
	next     atomic.Int64
	mu       sync.Mutex
	sessions map[string]int
}

// ServeHTTP implements http.Handler.
func (b *sticky) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	b.mu.Lock()
	at, ok := b.sessions[r.Header.Get("Mcp-Session-Id")]
	b.mu.Unlock()
	if !ok {
		at = int(b.next.Add(1)) % 2
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // the client has gone away
	}
	proxy := &httputil.ReverseProxy{
		Rewrite:       func(p *httputil.ProxyRequest) { p.SetURL(&url.URL{Scheme: "http", Host: b.addrs[at]}) },
		FlushInterval: -1,
		ErrorLog:      log.New(io.Discard, "", 0),
		Transport:     &attempts{balancer: b, at: at, body: body},
	}
	proxy.ServeHTTP(w, r)
}

// attempts sends one request to one replica, or to the other one: on proof that the first did not begin it.
type attempts struct {
	balancer *sticky
	at       int
	body     []byte
}

// unshared keeps no connections: a replica that leaves has none that look alive.
var unshared = &http.Transport{DisableKeepAlives: true, MaxConnsPerHost: 0}

// RoundTrip implements http.RoundTripper.
func (a *attempts) RoundTrip(r *http.Request) (resp *http.Response, err error) {
	for n := range 2 {
		at := (a.at + n) % 2
		r.URL.Host, r.Host = a.balancer.addrs[at], a.balancer.addrs[at]
		r.Body = io.NopCloser(bytes.NewReader(a.body))
		resp, err = unshared.RoundTrip(r)
		switch {
		case errors.Is(err, syscall.ECONNREFUSED):
		case err != nil:
			return nil, err
		case resp.StatusCode == http.StatusServiceUnavailable && n == 0:
			resp.Body.Close()
		default:
			if id := resp.Header.Get("Mcp-Session-Id"); id != "" {
				a.balancer.mu.Lock()
				a.balancer.sessions[id] = at
				a.balancer.mu.Unlock()
			}
			return resp, nil
		}
	}
	return resp, err
}
