package main

import (
	"context"
	"net"
	"net/http"
	"os"
	"strings"
)

// This file is built into the client of the Go SDK for the official suite (TestConformanceAuth).
//
// Each request has a connection of its own: the suite's servers close one that is idle for 5 s, which
// a busy machine reaches between two requests, and a POST that meets the close is not made again.
//
// With the variable, which is NAME:PORT=ADDRESS, connections to that name go to that address, as they
// would with another entry in DNS. What is sent stays as it is.
func init() {
	transport := http.DefaultTransport.(*http.Transport)
	transport.DisableKeepAlives = true
	// The SDK fetches metadata with a transport of its own, unless its client has one.
	http.DefaultClient.Transport = transport
	name, addr, ok := strings.Cut(os.Getenv("TASKGATE_E2E_DIAL"), "=")
	if !ok {
		return
	}
	dial := transport.DialContext
	transport.DialContext = func(ctx context.Context, network, to string) (net.Conn, error) {
		if to == name {
			to = addr
		}
		return dial(ctx, network, to)
	}
}
