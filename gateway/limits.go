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

// Limits bound what clients hold of a replica, beside what the configuration says. What is 0 has its
// default.
type Limits struct {
	// Connections is how many connections of clients there are at a time. One more is closed at
	// once. The default is 50,000: a connection that does nothing takes some 20 KB.
	Connections int
	// Streams is how many streams are open that clients listen to, and StreamsPerOwner how many of
	// one authenticated caller. The default is 20,000, of which one caller has a quarter at most.
	Streams, StreamsPerOwner int
	// ClientTimeout is how long a client may take for each 64 KiB of what it sends or is sent.
	// The default is 30s: a client may be slow, however large the message; it must not stop.
	ClientTimeout time.Duration
}

// withDefaults fills in what is zero.
func (l Limits) withDefaults() Limits {
	return Limits{
		Connections: cmp.Or(l.Connections, 50_000), Streams: cmp.Or(l.Streams, 20_000), StreamsPerOwner: cmp.Or(l.StreamsPerOwner, 5000),
		ClientTimeout: cmp.Or(l.ClientTimeout, 30*time.Second),
	}
}

// bound makes what bounds the clients of this replica: their connections, their calls in
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

// ConnState is the hook of an http.Server that holds connections to their limit. One more than
// there may be is closed at once and without a word: to answer it, its request would have to
// be read, which is to hold the connection for as long as its client likes. Whoever balances
// between replicas takes that for a replica that is not there, and goes to another one.
func (g *Gateway) ConnState(conn net.Conn, state http.ConnState) {
	switch state {
	case http.StateNew:
		runtime.Gosched() // the server would accept all that wait before it serves the first: all others would wait for those
		if err := g.connections.Enter(""); err != nil {
			g.connections.Force("") // until the server says that it is closed
			g.tel.Refused(context.Background(), err)
			_ = conn.Close()
		}
	case http.StateClosed, http.StateHijacked: // who takes a connection from the server closes it
		g.connections.Leave("")
	}
}
