package main

import (
	"context"
	"net"
	"net/http"
	"os"
	"strings"
)

// This file is built into the client of the Go SDK for the official suite (TestConformanceAuth). With
// the variable, which is NAME:PORT=ADDRESS, connections to that name go to that address, as they would
// with another entry in DNS. What is sent stays as it is.
func init() {
	name, addr, ok := strings.Cut(os.Getenv("TASKGATE_E2E_DIAL"), "=")
	if !ok {
		return
	}
	transport := http.DefaultTransport.(*http.Transport)
	dial := transport.DialContext
	transport.DialContext = func(ctx context.Context, network, to string) (net.Conn, error) {
		if to == name {
			to = addr
		}
		return dial(ctx, network, to)
	}
	// The SDK fetches metadata with a transport of its own, unless its client has one.
	http.DefaultClient.Transport = transport
}
