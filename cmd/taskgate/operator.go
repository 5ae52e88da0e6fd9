package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"maps"
	"os"
	"slices"
	"time"

	"taskgate/gateway/auth"
	"taskgate/gateway/config"
	"taskgate/gateway/operator"
)

// reachEvery is how often a report looks anew whether the servers can be reached.
const reachEvery = 10 * time.Second

// operators is what a server needs to be shown to those who run it.
type operators struct {
	deployment *operator.Deployment
	handler    *operator.Handler
	methods    *auth.Methods // nil where nobody signs in
	token      string        // that the log has at the start; "" for none
}

// newOperators makes the interface for operators at an address of admin.
func (s *server) newOperators(admin string) (*operators, error) {
	host, _ := os.Hostname() // a name for people, which may be missing
	begun, reach := time.Now().UTC().Truncate(time.Second), lookout{ready: s.ready}
	o := &operators{deployment: operator.NewDeployment(operator.DeploymentOptions{
		Tasks: s.shim.Operator(s.store.Overview()), Store: s.store.Overview(), Replica: s.replica, Metrics: s.tel.metrics, Logger: s.log,
		TraceAt: s.config.TraceAt,
		Say: func() operator.Report {
			r := operator.Report{Host: host, Address: s.listener.Addr().String(), Version: moduleVersion(), Config: s.inUse(), Since: begun}
			r.Upstreams = s.served.Load().reported(reach.look())
			return r
		},
	})}
	c := s.config.AdminAuth
	if !c.Required() && loopback(admin) {
		o.token = rand.Text()
		c.Keys = []config.BearerKey{config.BearerKey("local:" + config.HashKey(o.token))}
	}
	opts := operator.Options{
		Source: o.deployment, Ambient: c.TrustedHeader != nil, Content: s.config.AdminContent == config.On,
		Version: moduleVersion(), Replica: string(s.replica), Audit: s.auditLog,
	}
	if c.Required() {
		var err error
		if o.methods, err = signIn(c, s); err != nil {
			return nil, err
		}
		opts.Method = o.methods.Of(signInName)
	}
	o.handler = operator.New(opts)
	return o, nil
}

// signInName names the one thing that operators sign in to.
const signInName = "admin"

// signIn makes the ways to sign in of operators, as if they called an upstream.
func signIn(a config.Auth, s *server) (*auth.Methods, error) {
	c := config.Config{Auth: a, PublicURL: s.config.PublicURL, Upstreams: []*config.Upstream{config.NewUpstream(signInName, "")}}
	methods, err := auth.New(&c, auth.Options{Logger: s.log})
	if err != nil {
		return nil, fmt.Errorf("admin_auth: %w", err)
	}
	return methods, nil
}

// run reports how this replica is, and fetches the keys of issuers.
func (o *operators) run(ctx context.Context) error {
	if o.methods != nil {
		done := make(chan error, 1)
		go func() { done <- o.methods.Run(ctx) }()
		defer func() { <-done }()
	}
	return ignore(o.deployment.Run(ctx), context.Canceled)
}

// saysConsole tells where the console is. The token goes to the terminal or the file of the process, and to no system
// that collects logs: it lets its holder cancel everybody's tasks.
func (s *server) saysConsole() {
	if s.admin == nil {
		return
	}
	at := "http://" + s.admin.listener.Addr().String() + "/console/"
	switch {
	case s.operators.token != "":
		s.plain.Info("the console for operators, with a token that lasts as long as this process", "at", at+"#token="+s.operators.token)
	case s.operators.methods != nil:
		s.log.Info("the console for operators", "at", at)
	default:
		s.log.Info("the console for operators is off: it needs admin_auth, or an admin address on loopback")
	}
}

// lookout remembers for a while which servers can be reached. It belongs to one goroutine.
type lookout struct {
	ready *readiness
	at    time.Time
	found map[string]state
}

func (l *lookout) look() map[string]state {
	if l.at.IsZero() || time.Since(l.at) >= reachEvery {
		l.found, l.at = l.ready.look(nil).Upstreams, time.Now()
	}
	return l.found
}

// reported are the upstreams for a report.
func (us upstreams) reported(reach map[string]state) []operator.ReportedUpstream {
	out := make([]operator.ReportedUpstream, 0, len(us))
	for _, name := range slices.Sorted(maps.Keys(us)) {
		u, said := us[name].config, reach[name]
		one := operator.ReportedUpstream{Name: name, Reachable: said.Reachable, Error: said.Error, Removed: u.Removed, Policies: policies(u)}
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

// policies are those of the tools of an upstream.
func policies(u *config.Upstream) []operator.Policy {
	all := make([]operator.Policy, 0, len(u.Tools)+1)
	for _, r := range u.Tools {
		all = append(all, policyShown(r.Match, r.Tool))
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
		Concurrency: t.Concurrency, Recover: string(t.Recover),
	}
}
