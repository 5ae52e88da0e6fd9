// Package balancer is a load balancer as operators have one, for tests. It asks each replica
// for /readyz each second, and sends each request to the next replica that was ready. It is
// an http.Handler; the tests serve it.
package balancer

import (
	"bytes"
	"context"
	"io"
	"log"
	"net/http"
	"net/http/httputil"
	"net/url"
	"sync"
	"sync/atomic"
	"time"
)

const (
	probeEvery   = time.Second
	probeTimeout = 5 * time.Second
)

// nobody is an address where nothing listens: a client gets 502.
const nobody = "127.0.0.1:1"

// Replica says where a replica is now: the address that serves, and that of its probes.
type Replica func() (addr, admin string)

// Balancer sends each request to the next replica that is ready.
type Balancer struct {
	replicas []Replica
	ready    []atomic.Bool
	next     atomic.Int64
	proxy    *httputil.ReverseProxy
	probe    http.Client
}

// New is a balancer for these replicas. None of them is ready before Poll has asked it.
func New(replicas ...Replica) *Balancer {
	b := &Balancer{replicas: replicas, ready: make([]atomic.Bool, len(replicas))}
	b.probe.Timeout = probeTimeout
	b.proxy = &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(b.pick()) },
		FlushInterval: -1,
		ErrorLog:      log.New(io.Discard, "", 0), // the client gets 502
	}
	return b
}

// Poll asks all replicas until ctx ends.
func (b *Balancer) Poll(ctx context.Context) {
	var all sync.WaitGroup
	for i := range b.replicas {
		all.Go(func() {
			tick := time.NewTicker(probeEvery)
			defer tick.Stop()
			for {
				b.ready[i].Store(b.ask(ctx, i))
				select {
				case <-ctx.Done():
					return
				case <-tick.C:
				}
			}
		})
	}
	all.Wait()
}

// ask reports whether a replica says that it is ready.
func (b *Balancer) ask(ctx context.Context, i int) bool {
	_, admin := b.replicas[i]()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+admin+"/readyz", nil)
	if err != nil {
		return false
	}
	resp, err := b.probe.Do(r)
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

// Ready reports whether the replica of this number was ready when it was last asked.
func (b *Balancer) Ready(i int) bool { return b.ready[i].Load() }

// pick is the next replica.
func (b *Balancer) pick() *url.URL {
	first := int(b.next.Add(1))
	for n := range b.replicas {
		if i := (first + n) % len(b.replicas); b.Ready(i) {
			addr, _ := b.replicas[i]()
			return &url.URL{Scheme: "http", Host: addr}
		}
	}
	return &url.URL{Scheme: "http", Host: nobody}
}

// ServeHTTP implements http.Handler. It has the whole request before it sends any of it on:
// else the proxy may break a response off, because it looks for more of the body after the
// server has closed that.
func (b *Balancer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // the client has gone
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	b.proxy.ServeHTTP(w, r)
}
