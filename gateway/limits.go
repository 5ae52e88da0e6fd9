package gateway

import (
	"context"
	"net"
	"net/http"
	"runtime"

	"taskgate/gateway/wire"
	"taskgate/shim"
)

// bound makes what bounds the clients of this replica: their connections, their calls in
// flight, and the streams that they listen to.
func (g *Gateway) bound() {
	c := g.config
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
