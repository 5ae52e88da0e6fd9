package gateway

import (
	"cmp"
	"context"
	"net"
	"net/http"
	"runtime"
	"time"

	"taskgate/gateway/config"
	"taskgate/gateway/wire"
	"taskgate/shim"
)

// Limits bound what clients hold of a replica, beside the configuration. A field of 0 has its
// default.
type Limits struct {
	// Connections bounds the open connections of clients. A further one is closed at once. The
	// default is 50,000: an idle connection takes some 20 KB.
	Connections int
	// Streams bounds the open streams that clients listen to, and StreamsPerOwner those of one
	// authenticated caller. The defaults are 20,000 and 5,000.
	Streams, StreamsPerOwner int
	// ClientTimeout is how long a client may take for each 64 KiB of what it sends or is sent. The
	// default is 30s: a client may be slow with a message of any size, but must go on.
	ClientTimeout time.Duration
}

// withDefaults fills in what is zero.
func (l Limits) withDefaults() Limits {
	return Limits{
		Connections: cmp.Or(l.Connections, 50_000), Streams: cmp.Or(l.Streams, 20_000), StreamsPerOwner: cmp.Or(l.StreamsPerOwner, 5000),
		ClientTimeout: cmp.Or(l.ClientTimeout, 30*time.Second),
	}
}

// bound makes the bounds on the clients of this replica: on their connections, their calls in
// flight, and the streams that they listen to.
func (g *Gateway) bound(c *config.Config) {
	g.connections = &shim.Bound{Key: "max_connections", Most: g.limits.Connections, All: "connections"}
	g.calls = &shim.Bound{
		Key: "max_calls", Most: c.MaxCalls, MostPerOwner: c.MaxCallsPerOwner,
		All: "calls in flight", Own: "calls of this caller in flight",
	}
	g.streams = wire.NewStreams(&shim.Bound{
		Key: "max_streams", Most: g.limits.Streams, MostPerOwner: g.limits.StreamsPerOwner,
		All: "open streams", Own: "open streams of this caller",
	})
}

// ConnState is the hook of an http.Server that holds connections to their limit. A further
// connection is closed at once and unanswered: to answer its request, the server would have to read
// it, and so hold the connection for as long as the client likes. A balancer between replicas takes
// that for a missing replica, and goes to another one.
func (g *Gateway) ConnState(conn net.Conn, state http.ConnState) {
	switch state {
	case http.StateNew:
		runtime.Gosched() // the server would accept all waiting connections before it serves the first
		if err := g.connections.Enter(""); err != nil {
			g.connections.Force("") // until the server says that it is closed
			g.tel.Refused(context.Background(), err)
			_ = conn.Close()
		}
	case http.StateClosed, http.StateHijacked: // the code that takes over a connection closes it
		g.connections.Leave("")
	}
}
