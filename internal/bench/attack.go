package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"taskgate/internal/mcp"
)

// This file measures what one principal can do to another one. It attacks in one way after
// the other, while the other one makes a plain call each callEvery on one connection. All
// bounds of the gateway are at their defaults, and there is a rate, which has none. The
// attacker is a process of the lowest priority: on a machine of its own, it would take no
// processor time from the gateway. The baseline is the same attack on a bare reverse proxy in
// front of the same server, and the same calls through that.

// Keys of the two principals.
const (
	attackerKey = "attacker-attacker-attacker-attacker"
	otherKey    = "other-other-other-other-other-other"
)

// attackConfig is the gateway that is attacked.
const attackConfig = `
listen: %s
store: redis://%s/0
log: {level: error}
rate: {requests: 200, burst: 400}
auth: {keys: [{principal: attacker, sha256: %x}, {principal: other, sha256: %x}]}
upstreams:
  - name: attacked
    path: /mcp
    url: http://%s/mcp
    era: legacy
    defaults: {tasks: never}
`

const (
	attackConns = 16   // connections that attack at once, each with one request at a time
	mostKept    = 2000 // connections that an attack keeps open
	attackWatch = 100 * time.Millisecond
	callEvery   = 10 * time.Millisecond // below the rate
)

// attack is one way to use too much.
type attack struct {
	name string
	// request makes the request number n of a worker, which runs it again and again.
	request func(n int64) []byte
	// leaves says that the attacker closes the connection without reading, keeps that it
	// leaves the connection open without reading, and opens another one.
	leaves, keeps bool
}

// attempts are what the workers of an attack count together.
type attempts struct {
	sent, refused atomic.Int64
	kept          atomic.Int64 // connections that are left open
}

// damage is what was found during one attack.
type damage struct {
	other           sample
	failed          error // the other one's calls did
	sent, refused   int64
	resident, store int64 // bytes, the most of gateway and Redis
}

// measureAttacks writes the report of the attacks, each of which lasts so long.
func measureAttacks(ctx context.Context, out io.Writer, taskgate, only string, length time.Duration) error {
	if _, err := raiseFiles(); err != nil {
		return fmt.Errorf("limit of open files: %w", err)
	}
	p, err := newAttacked(ctx, taskgate)
	if err != nil {
		return err
	}
	defer p.close()
	defer p.store.Close()
	bare := p.behindProxy()
	attacks := slices.DeleteFunc(p.attacks(""), func(a attack) bool { return !strings.Contains(a.name, only) })
	fmt.Fprintf(out, "\n### One principal attacks\n\n| attack | sent/s | refused | p50 of the other's calls | p99 | × idle | gateway, most | Redis, most | bare proxy: p50 | p99 | × idle |\n|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n")
	var idle, bareIdle time.Duration
	for _, a := range append([]attack{{name: "none"}}, attacks...) {
		fmt.Fprintln(os.Stderr, "attack:", a.name)
		d := p.suffer(ctx, a, length)
		if d.failed != nil {
			fmt.Fprintf(os.Stderr, "%v\n%s", d.failed, p.complaints())
		}
		if err := pause(ctx, settled); err != nil {
			return err
		}
		b := bare.suffer(ctx, a, length)
		if b.failed != nil {
			fmt.Fprintf(os.Stderr, "through the bare proxy: %v\n", b.failed)
		}
		fmt.Fprintf(out, "| %s | %.0f | %d | %s | %d MB | %d MB | %s |\n", a.name, float64(d.sent)/length.Seconds(), d.refused,
			d.times(&idle), d.resident>>20, d.store>>20, b.times(&bareIdle))
		if err := pause(ctx, settled); err != nil {
			return err
		}
	}
	return nil
}

// times are the cells about the other one's calls. idle is its p99 without an attack, which is that
// of the first damage.
func (d damage) times(idle *time.Duration) string {
	if d.failed != nil {
		return "failed | failed | –"
	}
	if *idle == 0 {
		*idle = max(d.other.p99, 1)
	}
	return fmt.Sprintf("%s | %s | %.1f", short(d.other.p50), short(d.other.p99), float64(d.other.p99)/float64(*idle))
}

// behindProxy is the same with the bare reverse proxy in the place of the gateway.
func (p *parking) behindProxy() *parking {
	bare := *p
	bare.gateway = p.proxy
	return &bare
}

// newAttacked starts a gateway with two principals, and a bare reverse proxy.
func newAttacked(ctx context.Context, taskgate string) (_ *parking, err error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	p := &parking{}
	if p.dir, err = os.MkdirTemp("", "taskgate-bench"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			p.close()
		}
	}()
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	if err := p.freeAddrs(); err != nil {
		return nil, err
	}
	file := filepath.Join(p.dir, "taskgate.yaml")
	config := fmt.Appendf(nil, attackConfig, p.gateway, p.redis, sha256.Sum256([]byte(attackerKey)), sha256.Sum256([]byte(otherKey)), p.upstream)
	if err := os.WriteFile(file, config, 0o600); err != nil {
		return nil, err
	}
	err = p.run(ctx, []party{
		p.redisParty(),
		{p.upstream, self, []string{"-as", "hold", "-listen", p.upstream}},
		{p.proxy, self, []string{"-as", "proxy", "-listen", p.proxy, "-to", p.upstream}},
		{p.gateway, taskgate, []string{"serve", "--config", file}},
	})
	if err != nil {
		return nil, err
	}
	p.store = newRedis(p.redis, 1)
	p.pid = p.processes[len(p.processes)-1].PID()
	return p, nil
}

// by adds a principal's key to a request.
func by(key string, request []byte) []byte {
	return bytes.Replace(request, []byte("\r\n\r\n"), []byte("\r\nAuthorization: Bearer "+key+"\r\n\r\n"), 1)
}

// legacyRequest is a request of a client of 2025-11-25, by the attacker.
func (p *parking) legacyRequest(session, message string) []byte {
	if session != "" {
		session = mcp.HeaderSession + ": " + session + "\r\n" + mcp.HeaderProtocolVersion + ": " + mcp.Version20251125 + "\r\n"
	}
	return by(attackerKey, fmt.Appendf(nil, "POST /mcp HTTP/1.1\r\nHost: %s\r\nContent-Type: %s\r\nAccept: %s\r\n%sContent-Length: %d\r\n\r\n%s",
		p.gateway, mcp.TypeJSON, mcp.TypeAccept, session, len(message), message))
}

// modernCall is a call of a client of 2026-07-28, by the attacker.
func (p *parking) modernCall(tool, arguments string) []byte {
	return by(attackerKey, request(p.gateway, mcp.MethodToolsCall, tool, `"name":"`+tool+`","arguments":{`+arguments+`}`, false))
}

// initialize opens a session whose client describes itself with this text.
func (p *parking) initialize(text string) []byte {
	return p.legacyRequest("", `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"`+text+`","version":"1"}}}`)
}

// session opens a session and returns its id.
func (p *parking) session() (string, error) {
	conn, err := net.DialTimeout("tcp", p.gateway, dialTimeout)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if err := errors.Join(conn.SetDeadline(time.Now().Add(answerTimeout)), send(conn, p.initialize("bench"))); err != nil {
		return "", err
	}
	head := make([]byte, 4<<10)
	n, err := conn.Read(head)
	if err != nil {
		return "", err
	}
	if id := field(string(head[:n]), mcp.HeaderSession+":"); id != "unknown" {
		return id, nil
	}
	return "", fmt.Errorf("no session: %s", head[:n])
}

// The attacks that are made in a session.
const (
	attackSubscriptions = "subscriptions"
	attackCancellations = "cancellations of 1 MB"
)

// attacks are all that is done; session is one of the attacker's, for the two that need one.
func (p *parking) attacks(session string) []attack {
	always := func(request []byte) func(int64) []byte { return func(int64) []byte { return request } }
	long := func(n int) string { return strings.Repeat("x", n) }
	return []attack{
		{name: attackSubscriptions, request: func(n int64) []byte {
			return p.legacyRequest(session, `{"jsonrpc":"2.0","id":1,"method":"resources/subscribe","params":{"uri":"test://`+strconv.FormatInt(n, 10)+long(8000)+`"}}`)
		}},
		{name: attackCancellations, request: always(p.legacyRequest(session, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"`+long(1_000_000)+`"}}`))},
		{name: "calls", request: always(p.modernCall(quickTool, ""))},
		{name: "calls of 4 MB", request: always(p.modernCall(quickTool, `"text":"`+long(4_000_000)+`"`))},
		{name: "calls that are left", request: always(p.modernCall(holdTool, "")), leaves: true},
		{name: "calls that are kept", request: always(p.modernCall(holdTool, "")), keeps: true},
		{name: "results of 20 MB, unread", request: always(p.modernCall(largeTool, "")), keeps: true},
		{name: "listen streams", request: always(by(attackerKey, request(p.gateway, mcp.MethodListen, "", `"notifications":{"toolsListChanged":true}`, false))), keeps: true},
		{name: "connections", request: always(nil), keeps: true},
		// Last: after them, the attacker gets no other session for a while.
		{name: "sessions of 60 kB", request: always(p.initialize(long(60_000)))},
		{name: "sessions of 3.9 MB", request: always(p.initialize(long(3_900_000)))},
	}
}

// suffer attacks for a while, and measures meanwhile.
func (p *parking) suffer(ctx context.Context, a attack, length time.Duration) (d damage) {
	attacking, stop := context.WithTimeout(ctx, length)
	defer stop()
	var working sync.WaitGroup
	if a.request != nil {
		working.Go(func() {
			if d.sent, d.refused, d.failed = p.attacker(ctx, a.name, length); d.failed != nil {
				stop()
			}
		})
	}
	working.Go(func() { d.resident, d.store = p.most(attacking) })
	other, err := p.callOften(attacking)
	working.Wait()
	d.other, d.failed = other, errors.Join(d.failed, err)
	return d
}

// attacker runs the process that attacks, and returns how many requests it has made and how
// many of them were refused.
func (p *parking) attacker(ctx context.Context, name string, length time.Duration) (sent, refused int64, err error) {
	self, err := os.Executable()
	if err != nil {
		return 0, 0, err
	}
	cmd := exec.CommandContext(ctx, self, "-as", "attack", "-to", p.gateway, "-attack", name, "-for", length.String())
	cmd.Stderr = os.Stderr
	counts, err := cmd.Output()
	if err != nil {
		return 0, 0, fmt.Errorf("the attacker: %w", err)
	}
	_, err = fmt.Sscan(string(counts), &sent, &refused)
	return sent, refused, err
}

// attackAs is the process that attacks. It writes what attacker reads.
func attackAs(ctx context.Context, out io.Writer, gateway, name string, length time.Duration) error {
	if _, err := raiseFiles(); err != nil {
		return fmt.Errorf("limit of open files: %w", err)
	}
	if err := syscall.Setpriority(syscall.PRIO_PROCESS, 0, 19); err != nil {
		return fmt.Errorf("priority: %w", err)
	}
	p := &parking{stage: stage{gateway: gateway}}
	session := ""
	if name == attackSubscriptions || name == attackCancellations { // an attack on sessions leaves no room for one
		var err error
		if session, err = p.session(); err != nil {
			return err
		}
	}
	all := p.attacks(session)
	i := slices.IndexFunc(all, func(a attack) bool { return a.name == name })
	if i < 0 {
		return fmt.Errorf("no such attack: %q", name)
	}
	ctx, stop := context.WithTimeout(ctx, length)
	defer stop()
	var n attempts
	var working sync.WaitGroup
	for worker := range attackConns {
		working.Go(func() { p.attack(ctx, all[i], int64(worker)<<32, &n) })
	}
	working.Wait()
	_, err := fmt.Fprintln(out, n.sent.Load(), n.refused.Load())
	return err
}

// callOften makes the calls of the other one until ctx ends.
func (p *parking) callOften(ctx context.Context) (sample, error) {
	w, err := dialHTTP(p.gateway, by(otherKey, request(p.gateway, mcp.MethodToolsCall, quickTool, `"name":"`+quickTool+`","arguments":{}`, false)))
	if err != nil {
		return sample{}, err
	}
	defer w.Close()
	var times []time.Duration
	tick := time.NewTicker(callEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return summarise(times, time.Second), nil
		}
		begin := time.Now()
		answer, err := w.do()
		if err == nil && !bytes.Contains(answer, []byte(answered)) {
			err = fmt.Errorf("the answer is %.300q", answer)
		}
		if err != nil {
			return sample{}, err
		}
		times = append(times, time.Since(begin))
	}
}

// attack is one worker. What the gateway refuses is counted, and made again.
func (p *parking) attack(ctx context.Context, a attack, next int64, n *attempts) {
	var open []net.Conn
	defer func() {
		for _, c := range open {
			_ = c.Close()
		}
	}()
	for ctx.Err() == nil {
		conn, err := net.DialTimeout("tcp", p.gateway, dialTimeout)
		if err != nil {
			n.refused.Add(1)
			continue
		}
		open = append(open, conn)
		for again := true; again && ctx.Err() == nil; next++ {
			n.sent.Add(1)
			_ = conn.SetDeadline(time.Now().Add(answerTimeout))
			err := send(conn, a.request(next))
			switch {
			case a.keeps:
				again = false
			case a.leaves:
				_, again = conn.Close(), false
			case err == nil:
				again = readAnswer(ctx, conn, n)
			default:
				again = false
			}
		}
		if a.keeps {
			if n.kept.Add(1) > mostKept {
				<-ctx.Done()
			}
			continue
		}
		open = slices.Delete(open, 0, len(open))
		_ = conn.Close()
	}
}

// readAnswer reads an answer, and reports whether the connection goes on.
func readAnswer(ctx context.Context, conn net.Conn, n *attempts) bool {
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Now()) })()
	c := newHTTPConn(conn, nil)
	status, err := c.line()
	if err != nil {
		n.refused.Add(1)
		return false
	}
	bad := !bytes.HasPrefix(status, []byte("HTTP/1.1 20"))
	if err := c.read(); err != nil {
		return false
	}
	if bad || bytes.Contains(c.body, []byte(`"error":{`)) {
		n.refused.Add(1)
	}
	return true
}

// send writes a request.
func send(conn net.Conn, request []byte) error {
	_, err := conn.Write(request)
	return err
}

// most watches how much memory the gateway and its Redis have, until ctx ends.
func (p *parking) most(ctx context.Context) (resident, store int64) {
	for {
		if u, err := residentOf(p.pid); err == nil {
			resident = max(resident, u)
		}
		if info, err := p.store.Info(ctx, "memory").Result(); err == nil {
			n, _ := strconv.ParseInt(field(info, "used_memory:"), 10, 64)
			store = max(store, n)
		}
		if pause(ctx, attackWatch) != nil {
			return resident, store
		}
	}
}
