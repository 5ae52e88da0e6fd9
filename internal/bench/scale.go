package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"taskgate/internal/mcp"
	"taskgate/internal/proc"
	"taskgate/internal/work"
)

const (
	// scaleMasters and scaleReplicas are the processes of the deployment: those of Redis, and gateways.
	scaleMasters, scaleReplicas = 3, 2
	// scaleSettled is how long what was made has something left to do, and scaleIdle how long the use is measured then.
	scaleSettled, scaleIdle = 20 * time.Second, 30 * time.Second
	// scaleConns is how many connections a load has at each replica.
	scaleConns = 8
	// calculated is the number for which the table is calculated.
	calculated = 100_000
	// scalePatience is how long a replica may take to start, or others to take over its tasks.
	scalePatience = 3 * time.Minute
)

// scaleConfig is a gateway of the deployment. The call of a lost replica is made again: the server says nothing to
// resume it by.
const scaleConfig = `
listen: %s
admin: %s
admin_auth: {trusted_header: {name: X-Operator, from: [127.0.0.1]}}
store: %s
limits: {max_connections: 1000000, max_calls: 1000000, max_streams: 1000000, max_tasks: 1000000, max_sessions: 1000000}` + upstreamConfig + `
      - {match: hold, tasks: always, ttl: 1h, recover: retry}
`

// deployment is several replicas, a Redis Cluster, and clients.
type deployment struct {
	*stage
	taskgate, era string
	masters       []string // addresses
	redis         []*proc.Process
	gateways      []*scaleGateway
	clients       []*httpConn // what they hold open
	sessions      [][2]string // the address and the id of each
}

// scaleGateway is one replica.
type scaleGateway struct {
	*proc.Process
	addr, admin string
}

// count is what clients have one more of at a replica.
type count struct {
	name, era string
	// add adds n of them at a gateway.
	add func(d *deployment, at *scaleGateway, n int) error
	// after does what clients do when their replica is lost, and says what that was.
	after func(d *deployment, ctx context.Context, lost *scaleGateway, n int) (string, error)
}

var counts = []count{
	{name: "sessions", era: "legacy", add: (*deployment).addSessions, after: (*deployment).useSessions},
	{name: "GET streams", era: "legacy", add: (*deployment).addStreams, after: (*deployment).listenAgain},
	{name: "running tasks", era: "modern", add: (*deployment).addTasks, after: (*deployment).awaitTakeOver},
}

// scaled is what one count has cost.
type scaled struct {
	name    string
	levels  []scaleLevel // with none, n and 2n
	started scaleUse     // by a replica until it answers; took is how long that was
	lost    string
}

// scaleLevel is the deployment with so many, while nothing happens, and what the last of them cost to make.
type scaleLevel struct {
	n         int
	idle, add scaleUse
}

// scaleUse is what was used, in some time.
type scaleUse struct {
	took               time.Duration
	resident, redis    int64 // bytes, of all gateways and of all masters together
	gateCPU, masterCPU time.Duration
	commands           int64
}

// measureScale measures a deployment of several replicas with many clients, and calculates what 100,000 would cost.
func measureScale(ctx context.Context, s settings) (string, error) {
	if err := raiseFiles(2 * s.scale); err != nil {
		return "", err
	}
	var all []scaled
	for _, c := range counts {
		found, err := scaleOne(ctx, s, c)
		if err != nil {
			return "", fmt.Errorf("%s: %w", c.name, err)
		}
		all = append(all, found)
	}
	return scaleTables(all), nil
}

// scaleOne measures one count in a fresh deployment.
func scaleOne(ctx context.Context, s settings, c count) (scaled, error) {
	out := scaled{name: c.name}
	d, err := newDeployment(ctx, s, c.era)
	if err != nil {
		return out, err
	}
	defer d.close()
	for n := 0; n <= 2*s.scale; n += s.scale {
		fmt.Fprintf(os.Stderr, "%d %s\n", n, c.name)
		l := scaleLevel{n: n}
		if l.add, err = d.during(func() error { return d.addTo(c, n) }); err == nil {
			l.idle, err = d.watchIdle(ctx)
		}
		if err != nil {
			return out, err
		}
		out.levels = append(out.levels, l)
	}
	fmt.Fprintln(os.Stderr, "a replica starts")
	if out.started, err = d.during(func() error { return d.addReplica(ctx) }); err != nil {
		return out, err
	}
	fmt.Fprintln(os.Stderr, "a replica is lost")
	lost := d.gateways[0]
	lost.Kill()
	d.gateways = d.gateways[1:]
	out.lost, err = c.after(d, ctx, lost, s.scale)
	return out, err
}

// newDeployment starts all processes.
func newDeployment(ctx context.Context, s settings, era string) (*deployment, error) {
	ctx, cancel := context.WithTimeout(ctx, scalePatience)
	defer cancel()
	st, err := emptyStage()
	if err != nil {
		return nil, err
	}
	d := &deployment{stage: st, taskgate: s.taskgate, era: era}
	if err = d.startServers(ctx); err == nil {
		err = d.startCluster(ctx)
	}
	for range scaleReplicas {
		if err == nil {
			err = d.addReplica(ctx)
		}
	}
	if err != nil {
		d.close()
	}
	return d, err
}

func (d *deployment) close() {
	for _, c := range d.clients {
		c.Close()
	}
	d.stage.close()
}

// startCluster makes a cluster of empty masters.
func (d *deployment) startCluster(ctx context.Context) error {
	var buses []string
	for i := range scaleMasters {
		addr, err := proc.FreeAddr()
		if err != nil {
			return err
		}
		bus, err := proc.FreeAddr()
		if err != nil {
			return err
		}
		dir := filepath.Join(d.dir, fmt.Sprint("redis", i))
		if err := os.Mkdir(dir, 0o700); err != nil {
			return err
		}
		p, err := d.run(ctx, addr, "redis-server", "--bind", "127.0.0.1", "--port", portOf(addr), "--cluster-enabled", "yes", "--cluster-port", portOf(bus),
			"--save", "", "--dir", dir)
		if err != nil {
			return err
		}
		d.masters, d.redis, buses = append(d.masters, addr), append(d.redis, p), append(buses, bus)
	}
	for i, addr := range d.masters {
		lines := []string{
			fmt.Sprintf("CLUSTER SET-CONFIG-EPOCH %d", i+1),
			fmt.Sprintf("CLUSTER ADDSLOTSRANGE %d %d", i*clusterSlots/scaleMasters, (i+1)*clusterSlots/scaleMasters-1),
		}
		for j, other := range d.masters[:i] {
			lines = append(lines, fmt.Sprintf("CLUSTER MEET 127.0.0.1 %s %s", portOf(other), portOf(buses[j])))
		}
		for _, line := range lines {
			if _, err := askRedis(addr, line); err != nil {
				return err
			}
		}
	}
	for _, addr := range d.masters {
		for {
			info, err := askRedis(addr, "CLUSTER INFO")
			if err == nil && strings.Contains(info, "cluster_state:ok") && strings.Contains(info, fmt.Sprintf("cluster_size:%d", scaleMasters)) {
				break
			}
			if work.Pause(ctx, 100*time.Millisecond) != nil {
				return fmt.Errorf("no cluster: %s %w", info, err)
			}
		}
	}
	return nil
}

// addReplica starts a gateway, and waits until it answers a client.
func (d *deployment) addReplica(ctx context.Context) error {
	var g scaleGateway
	var err error
	for _, addr := range []*string{&g.addr, &g.admin} {
		if *addr, err = proc.FreeAddr(); err != nil {
			return err
		}
	}
	file := filepath.Join(d.dir, portOf(g.addr)+".yaml")
	if err = os.WriteFile(file, fmt.Appendf(nil, scaleConfig, g.addr, g.admin, "redis+cluster://"+strings.Join(d.masters, ","), d.server, d.era), 0o600); err != nil {
		return err
	}
	if g.Process, err = d.run(ctx, g.addr, d.taskgate, "serve", "--config", file); err != nil {
		return err
	}
	d.gateways, d.gatewayProcess = append(d.gateways, &g), g.Process
	_, err = exchange(ctx, call(g.addr, "plain", false, answered), (*httpConn).do)
	return d.explain(err)
}

// addTo adds as many of a count as are missing to n-th level, evenly at all replicas.
func (d *deployment) addTo(c count, n int) error {
	if n == 0 {
		return nil
	}
	have := max(len(d.sessions), len(d.clients))
	if c.era == "modern" {
		var err error
		if have, err = d.held(context.Background(), ""); err != nil {
			return err
		}
	}
	for _, g := range d.gateways {
		if err := c.add(d, g, (n-have)/len(d.gateways)); err != nil {
			return fmt.Errorf("%w\n%s", err, g.Output())
		}
	}
	return nil
}

// addTasks makes tasks that last.
func (d *deployment) addTasks(at *scaleGateway, n int) error {
	hold := call(at.addr, toolHold, true, handled)
	workers, hangUp, err := hold.dialWorkers(min(scaleConns, n))
	defer hangUp()
	if err != nil {
		return err
	}
	before, err := d.held(context.Background(), "")
	if err == nil {
		err = hold.doTimes(workers, n)
	}
	if err == nil {
		err = d.waitHeld(context.Background(), before+n)
	}
	return err
}

// addSessions begins sessions over a few connections.
func (d *deployment) addSessions(at *scaleGateway, n int) error {
	hello := load{addr: at.addr, request: legacyRequest(at.addr, "", `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"bench","version":"1"}}}`)}
	c, err := dialHTTP(at.addr, hello.request)
	if err != nil {
		return err
	}
	defer c.Close()
	for range n {
		if _, err := c.do(); err != nil {
			return err
		}
		d.sessions = append(d.sessions, [2]string{at.addr, c.session})
	}
	return nil
}

// addStreams begins sessions, and has each listen on a connection of its own.
func (d *deployment) addStreams(at *scaleGateway, n int) error {
	first := len(d.sessions)
	if err := d.addSessions(at, n); err != nil {
		return err
	}
	for _, one := range d.sessions[first:] {
		if err := d.listen(at, one[1]); err != nil {
			return err
		}
	}
	return nil
}

// listen opens the GET stream of a session.
func (d *deployment) listen(at *scaleGateway, session string) error {
	c, err := dialHTTP(at.addr, fmt.Appendf(nil, "GET /mcp HTTP/1.1\r\nHost: %s\r\nAccept: %s\r\n%s: %s\r\n%s: %s\r\n\r\n",
		at.addr, mcp.TypeSSE, mcp.HeaderProtocolVersion, mcp.Version20251125, mcp.HeaderSession, session))
	if err != nil {
		return err
	}
	d.clients = append(d.clients, c)
	if err := c.SetDeadline(time.Now().Add(answerTimeout)); err != nil {
		return err
	}
	if _, err := c.Write(c.request); err != nil {
		return err
	}
	status, err := c.line()
	if err == nil && !strings.HasPrefix(string(status), "HTTP/1.1 200 ") {
		err = errors.New(string(status))
	}
	c.in = nil // the client listens no further, and needs no memory
	return err
}

// legacyRequest is a POST of a session, or of none.
func legacyRequest(addr, session, body string) []byte {
	if session != "" {
		session = mcp.HeaderSession + ": " + session + "\r\n" + mcp.HeaderProtocolVersion + ": " + mcp.Version20251125 + "\r\n"
	}
	return fmt.Appendf(nil, "POST /mcp HTTP/1.1\r\nHost: %s\r\nContent-Type: %s\r\nAccept: %s\r\n%sContent-Length: %d\r\n\r\n%s",
		addr, mcp.TypeJSON, mcp.TypeAccept, session, len(body), body)
}

// useSessions has the clients of a lost replica ask for the tools at the others.
func (d *deployment) useSessions(ctx context.Context, lost *scaleGateway, _ int) (string, error) {
	return d.moveClients(lost, "list the tools", func(to *scaleGateway, session string) error {
		ask := load{addr: to.addr, request: legacyRequest(to.addr, session, `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`)}
		_, err := exchange(ctx, ask, (*httpConn).do)
		return err
	})
}

// listenAgain has the clients of a lost replica listen at the others.
func (d *deployment) listenAgain(_ context.Context, lost *scaleGateway, _ int) (string, error) {
	return d.moveClients(lost, "listen", d.listen)
}

// moveClients has the clients of a lost replica do something at the others, one after the other.
func (d *deployment) moveClients(lost *scaleGateway, what string, do func(to *scaleGateway, session string) error) (string, error) {
	n := 0
	use, err := d.during(func() error {
		for _, one := range d.sessions {
			if one[0] != lost.addr {
				continue
			}
			if err := do(d.gateways[n%len(d.gateways)], one[1]); err != nil {
				return err
			}
			n++
		}
		return nil
	})
	return fmt.Sprintf("the %d clients of the lost replica %s at the others, one after the other: %s", n, what, use), err
}

// awaitTakeOver waits until the others run the tasks of a lost replica.
func (d *deployment) awaitTakeOver(ctx context.Context, _ *scaleGateway, n int) (string, error) {
	ctx, stop := context.WithTimeout(ctx, scalePatience)
	defer stop()
	use, err := d.during(func() error {
		for {
			left, err := d.orphans(ctx)
			if err == nil && left == 0 {
				return d.waitCount(ctx, "", 3*n, scalePatience) // those that the lost replica had open count, too
			}
			if work.Pause(ctx, 100*time.Millisecond) != nil {
				return fmt.Errorf("%d tasks are left: %w", left, err)
			}
		}
	})
	return fmt.Sprintf("its %d tasks run at the others, and their calls are made again: %s", n, use), err
}

// orphans is how many tasks are those of replicas that are gone.
func (d *deployment) orphans(ctx context.Context) (n int, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+d.gateways[0].admin+"/api/v1/replicas", nil)
	if err != nil {
		return 0, err
	}
	r.Header.Set("X-Operator", "bench")
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	var all struct {
		Replicas []struct {
			Alive bool
			Tasks int
		}
	}
	if err := json.NewDecoder(resp.Body).Decode(&all); err != nil {
		return 0, err
	}
	gone := false
	for _, one := range all.Replicas {
		if !one.Alive {
			gone, n = true, n+one.Tasks
		}
	}
	if !gone {
		return n, errors.New("no replica counts as gone")
	}
	return n, nil
}
