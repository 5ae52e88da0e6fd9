package gateway

import (
	"context"
	"net"
	"net/http"
	"runtime"

	"taskgate/gateway/config"
	"taskgate/gateway/wire"
	"taskgate/shim"
)

// makeBounds makes the bounds on the clients of this replica: on their connections, their calls in
// flight, and the streams that they listen to.
func (g *Gateway) makeBounds(c *config.Config) {
	g.connections = &shim.Bound{Key: "max_connections", Most: c.MaxConnections, All: "connections"}
	g.calls = &shim.Bound{
		Key: "max_calls", Most: c.MaxCalls, MostPerOwner: c.MaxCallsPerOwner,
		All: "calls in flight", Own: "calls of this caller in flight",
	}
	g.streams = wire.NewStreams(&shim.Bound{
		Key: "max_streams", Most: c.MaxStreams, MostPerOwner: c.MaxStreamsPerOwner,
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
