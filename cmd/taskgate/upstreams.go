package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"taskgate/gateway/auth"
	"taskgate/gateway/config"
	"taskgate/gateway/operator"
	"taskgate/gateway/upstream"
	"taskgate/gateway/upstream/stdio"
	"taskgate/internal/work"
	"taskgate/shim"
	"taskgate/shim/job"

	"golang.org/x/sync/errgroup"
)

// upstreams has the upstreams that are served, by configured name.
type upstreams map[string]*offered

// offered is an upstream, with its client.
type offered struct {
	config *config.Upstream
	client *renewable
	way    way
	reach  *part         // says whether the server can be reached
	next   *lease        // is to replace the one in client; nil if nothing changes
	most   time.Duration // the longest time for which a policy since the start keeps a task of it
	until  time.Time     // until when the tasks of a removed upstream are kept; else zero
}

// way is the input of an upstream's client besides its configuration.
type way struct {
	tls         *tls.Config
	files       string // the content of the files of tls
	passthrough bool
}

// planUpstreams returns the upstreams to serve, with clients for those that are new or changed. beginClients
// makes the change; until then servers are left alone.
func (s *server) planUpstreams(c *config.Config) (next upstreams, err error) {
	served := s.served()
	next = make(upstreams, len(c.Upstreams))
	for _, u := range c.Upstreams {
		one := &offered{config: u, most: longestTask(u)}
		old := served[u.Name]
		if old != nil {
			one.client, one.way, one.most = old.client, old.way, max(old.most, one.most)
		} else {
			one.client = newRenewable()
		}
		one.reach = &part{check: one.client.Reach}
		pass, files := c.AuthOf(u).Passthrough != nil, u.TLS.Files()
		if old == nil || old.way.passthrough != pass || old.way.files != files || !old.config.SameServer(u) {
			one.way = way{files: files, passthrough: pass}
			one.next, err = s.newLease(c, u, &one.way)
		}
		if err != nil {
			next.discardClients()
			return nil, err
		}
		next[u.Name] = one
	}
	return next, nil
}

// served returns the upstreams that are served now. It may be called from any goroutine.
func (s *server) served() upstreams { return *s.upstreams.Load() }

// longestTask is the longest time for which a task of an upstream may be kept.
func longestTask(u *config.Upstream) time.Duration {
	most := u.Defaults.Timeout + u.Defaults.TTL
	for _, rule := range u.Tools {
		most = max(most, rule.Timeout+rule.TTL)
	}
	return most
}

// newLease makes the client of an upstream.
func (s *server) newLease(c *config.Config, u *config.Upstream, by *way) (l *lease, err error) {
	cfg := upstreamConfig(c, u, s.replica, s.log, s.tel)
	cfg.Budget = s.budget
	if by.passthrough {
		cfg.Shared = false // anonymous callers may send credentials of different users
		cfg.MaxSeen = auth.MaxTokens
	}
	if by.tls, err = clientTLS(u.TLS); err != nil {
		return nil, fmt.Errorf("tls of upstream %s: %w", u.Name, err)
	}
	cfg.TLS, cfg.Dial = by.tls, s.network.dialServer
	l = newLease()
	if u.Command != "" {
		child := stdioConfig(c, u, s.processIdle, s.log)
		child.After = l.alone.Done()
		// A session is a process of this replica, out of reach of the others.
		cfg.Transport, cfg.SessionIdle = stdio.New(child), cmp.Or(s.processIdle, math.MaxInt64)
	} else {
		cfg.Sessions = s.store.UpstreamSessions(u.Name)
		cfg.TasksUnnoted = func(ctx context.Context) (bool, error) {
			if !work.IsClosed(l.clear) { // an earlier client may have calls under way
				return true, nil
			}
			all, err := s.store.Overview().Replicas(ctx)
			return slices.ContainsFunc(all, func(one shim.Standing) bool {
				return one.Running > 0 && one.Replica != s.replica && !(one.Alive && operator.NotesUse(one.About))
			}), err
		}
	}
	l.ServerClient, err = upstream.New(cfg)
	return l, err
}

// beginClients replaces the clients that have changed, and lets only those of removed upstreams refuse requests.
func (us upstreams) beginClients() {
	for _, one := range us {
		one.client.removed.Store(one.config.Removed)
		if one.next != nil {
			one.client.renewClient(one.next)
			one.next = nil
		}
	}
}

// discardClients closes new clients that are unused.
func (us upstreams) discardClients() {
	ctx, stop := context.WithTimeout(context.Background(), closeTimeout)
	defer stop()
	for _, one := range us {
		if one.next != nil {
			_ = one.next.Close(ctx)
		}
	}
}

func upstreamConfig(c *config.Config, u *config.Upstream, replica shim.Replica, log *slog.Logger, tel *telemetry) upstream.Config {
	// Filters before servers refuse the name of Go's client.
	headers := http.Header{"User-Agent": {"taskgate/" + strings.Trim(moduleVersion(), "()")}}
	for name, value := range u.Headers {
		headers.Set(name, value)
	}
	return upstream.Config{
		Name: u.Name, URL: u.URL, Headers: headers, Era: upstream.EraChoice(u.Era),
		Way: upstream.Way(u.Transport), SSEEndpoint: u.SSEEndpoint,
		Shared:       isLoopback(c.Listen),
		Tasks:        upstream.TaskUse(u.UpstreamTasks),
		StartTimeout: u.StartTimeout, IdleTimeout: u.IdleTimeout, MaxResult: int64(u.MaxResult),
		Replica: string(replica), FirstID: rand.Int64N(1 << 30), GatewayInfo: upstream.Info{Name: "taskgate", Version: moduleVersion()},
		Logger: log, TracerProvider: tel.traces, Metrics: tel.metrics, Baggage: c.Baggage,
	}
}

func stdioConfig(c *config.Config, u *config.Upstream, idle time.Duration, log *slog.Logger) stdio.Config {
	return stdio.Config{
		Name: u.Name, Command: u.Command, Args: u.Args, Env: u.Environment(os.Environ()), Dir: u.Cwd,
		OneUser: isLoopback(c.Listen), MaxProcesses: u.MaxProcesses, Idle: idle,
		MaxMessage: int64(u.MaxResult), Modern: u.Era == config.EraModern, Logger: log,
	}
}

// isLoopback reports whether only this machine can connect: anonymous calls then come from one user and may
// share an upstream session (design.md 0.16).
func isLoopback(listen string) bool {
	host, _, err := net.SplitHostPort(listen)
	return err == nil && config.IsLoopback(host)
}

// clients returns the upstreams as the gateway uses them, and the TLS configuration for requests that the
// gateway itself sends to their servers.
func (us upstreams) clients() (map[string]upstream.Client, map[string]*tls.Config) {
	out, secure := make(map[string]upstream.Client, len(us)), make(map[string]*tls.Config, len(us))
	for name, one := range us {
		out[name], secure[name] = offeredClient{one.client}, one.way.tls
	}
	return out, secure
}

func (us upstreams) closeClients(ctx context.Context) error {
	g := errgroup.Group{} // at once, because a process takes time to end
	for _, one := range us {
		g.Go(func() error { return one.client.Close(ctx) })
	}
	return g.Wait()
}

// reported returns the upstreams for a report.
func (us upstreams) reported(reach map[string]state) []operator.ReportedUpstream {
	out := make([]operator.ReportedUpstream, 0, len(us))
	for _, name := range slices.Sorted(maps.Keys(us)) {
		u, said := us[name].config, reach[name]
		one := operator.ReportedUpstream{Name: name, Reachable: said.Reachable, Error: said.Error, Removed: u.Removed, Policies: toolPolicies(u)}
		one.Era, one.Transport = us[name].client.now.Load().Spoken()
		if u.Command != "" {
			one.Transport = "stdio"
		} else if u.Transport != config.TransportAuto {
			one.Transport = cmp.Or(one.Transport, string(u.Transport))
		}
		out = append(out, one)
	}
	return out
}

// toolPolicies returns the policies of the tools of an upstream.
func toolPolicies(u *config.Upstream) []operator.Policy {
	all := make([]operator.Policy, 0, len(u.Tools)+1)
	for _, r := range u.Tools {
		all = append(all, policyShown(r.Match.String(), r.Tool))
	}
	return append(all, policyShown("*", u.Defaults))
}

func policyShown(tools string, t config.Tool) operator.Policy {
	grace := "auto"
	if t.Grace != config.Auto {
		grace = t.Grace.String()
	}
	return operator.Policy{
		Tools: tools, Tasks: string(t.Tasks), Grace: grace, TTL: t.TTL.String(), Timeout: t.Timeout.String(),
		Concurrency: t.Concurrency, Recover: string(t.Recover), Rerun: t.Rerun == config.On,
	}
}

// policies returns the policy of each tool of an upstream; content is admin_content.
func policies(u *config.Upstream, content config.Switch) func(tool string, says shim.Hints) shim.Policy {
	jobs := make([]*job.Rules, len(u.Tools))
	for i := range u.Tools {
		jobs[i] = u.Tools[i].Job.Rules()
	}
	return func(tool string, says shim.Hints) shim.Policy {
		p := policyOf(u.Tool(tool, says), content)
		p.Retry = p.Retry && (!p.IfRepeatable || says.Idempotent)
		if i := u.RuleOf(tool, says); i >= 0 {
			p.Job = jobs[i]
		}
		return p
	}
}

// policyOf is a tool's configuration as a policy of the shim; content is admin_content.
func policyOf(t config.Tool, content config.Switch) shim.Policy {
	return shim.Policy{
		Tasks: shim.Mode(t.Tasks), Grace: t.Grace, TTL: t.TTL,
		PollInterval: t.PollInterval, Timeout: t.Timeout,
		FoldProgress: t.Progress != config.ProgressOff,
		Retry:        t.Recover != config.RecoverFail,
		IfRepeatable: t.Recover == config.RecoverAuto,
		Concurrency:  t.Concurrency,
		EarlyInput:   shim.Early(t.EarlyInput),
		InputTimeout: t.InputTimeout,
		Repeat:       shim.RepeatMode(t.Repeat), Linger: t.Linger,
		Partials: shim.NewPartials(t.Progress == config.ProgressContent),

		ShowArguments: content == config.On,
		Rerun:         t.Rerun == config.On,
	}
}
