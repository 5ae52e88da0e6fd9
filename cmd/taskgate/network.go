package main

import (
	"context"
	"net"
)

// network is how a process is reached, and reaches others.
type network struct {
	listen     func(ctx context.Context, network, address string) (net.Listener, error) // for clients
	dialServer func(ctx context.Context, network, address string) (net.Conn, error)     // nil: as the transport does
	dialStore  func(ctx context.Context, network, address string) (net.Conn, error)     // nil: as the store does
}

// systemNetwork is the network of this machine.
func systemNetwork() network { return network{listen: (&net.ListenConfig{}).Listen} }
