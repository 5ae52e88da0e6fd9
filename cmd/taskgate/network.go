package main

import (
	"context"
	"net"

	"taskgate/redisstore/journal"
)

// network is how a process is reached, and reaches others and its store.
type network struct {
	listen     func(ctx context.Context, network, address string) (net.Listener, error) // for clients
	dialServer func(ctx context.Context, network, address string) (net.Conn, error)     // nil: as the transport does
	dialStore  func(ctx context.Context, network, address string) (net.Conn, error)     // nil: as the store does
	folder     journal.Folder                                                           // of a store "file:FOLDER"; nil: that of the system
}

// systemNetwork is the network of this machine.
func systemNetwork() network { return network{listen: (&net.ListenConfig{}).Listen} }
