package gateway

import (
	"context"
	"net"
	"net/http"
	"runtime"
	"time"

	"taskgate/gateway/config"
	"taskgate/gateway/wire"
	"taskgate/internal/work"
	"taskgate/shim"
)

// makeBounds makes the bounds on the clients of this replica: on their connections, their calls in
// flight, and the streams that they listen to.
func (g *Gateway) makeBounds(c *config.Config) {
	g.connections = &shim.Bound{Key: "max_connections", Most: g.limits.MaxConnections, All: "connections"}
	g.calls = &shim.Bound{
		Key: "max_calls", Most: g.limits.MaxCalls, MostPerOwner: c.MaxCallsPerOwner, Halved: c.SignsIn(),
		All: "calls in flight", Own: "calls of this caller in flight",
	}
	g.streams = wire.NewStreams(&shim.Bound{
		Key: "max_streams", Most: g.limits.MaxStreams, MostPerOwner: g.limits.MaxStreamsPerOwner, Halved: c.SignsIn(),
		All: "open streams", Own: "open streams of this caller",
	})
}

// limitSessions bounds what sessions hold in memory besides the number of them.
func (g *Gateway) limitSessions(c *config.Config) {
	g.sessions.Limit(int(config.EndBytes(g.options.Memory)), int(config.StateBytes(g.options.Memory)), c.SignsIn())
}

// ConnState is the hook of an http.Server that holds connections to their limit. A further
// connection is closed at once and unanswered: to answer its request, the server would have to read
// it, and so hold the connection for as long as the client likes. A balancer between replicas takes
// that for a missing replica, and goes to another one.
func (g *Gateway) ConnState(conn net.Conn, state http.ConnState) {
	share := shim.Share{Address: g.connectionShares.ShareOf(conn.RemoteAddr().String())}
	switch state {
	case http.StateNew:
		runtime.Gosched() // the server would accept all waiting connections before it serves the first
		if err := g.connections.Enter(share); err != nil {
			g.connections.Force(share) // until the server says that it is closed
			g.tel.Refused(context.Background(), err)
			_ = conn.Close()
		}
	case http.StateClosed, http.StateHijacked: // the code that takes over a connection closes it
		g.connections.Leave(share)
	}
}

// usageEvery is the time between two looks at how full the limits are, and usageNear how full one is near.
const (
	usageEvery = 10 * time.Second
	usageNear  = 0.8
)

// usage returns how full each limit is that follows the memory of the process, from 0 to 1, by its key.
func (g *Gateway) usage() map[string]float64 {
	all := map[string]float64{
		g.connections.Key: g.connections.Usage(), g.calls.Key: g.calls.Usage(), "max_streams": g.streams.Usage(),
	}
	for key, read := range g.options.Usage {
		all[key] = read()
	}
	return all
}

// watchUsage logs which limits are near, and what has recurred since it was logged, until ctx ends.
func (g *Gateway) watchUsage(ctx context.Context) error {
	defer g.tel.TellRest(context.Background(), true)
	for work.Pause(ctx, usageEvery) == nil {
		g.tel.TellRest(ctx, false)
		for key, used := range g.usage() {
			if used >= usageNear {
				g.tel.Near(ctx, key)
			}
		}
	}
	return nil
}
