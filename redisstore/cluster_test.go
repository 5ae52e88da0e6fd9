package redisstore

import (
	"context"
	"net"
	"testing"

	"taskgate/internal/redistest"
	"taskgate/shim"
)

// through has a store reach each of some servers through a proxy in front of it.
func through(t *testing.T, o *Options, servers ...*redistest.Server) map[*redistest.Server]*redistest.Proxy {
	t.Helper()
	proxies, addrs := map[*redistest.Server]*redistest.Proxy{}, map[string]string{}
	for _, s := range servers {
		proxies[s] = redistest.NewProxy(t, s.Addr)
		addrs[s.Addr] = proxies[s].Addr
	}
	o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		if a := addrs[addr]; a != "" {
			addr = a
		}
		var d net.Dialer
		return d.DialContext(ctx, network, addr)
	}
	return proxies
}

// A command whose reply is lost is sent once: only do repeats, which has no time for it
// here. Neither a cluster client does so by itself, nor one behind Sentinel.
func TestClientSendsOnce(t *testing.T) {
	t.Parallel()
	masters := redistest.Cluster(t, 3)
	master := redistest.Start(t)
	sentinel := redistest.Sentinel(t, master, 0)
	for name, c := range map[string]struct {
		url     string
		servers []*redistest.Server
	}{
		"one":      {master.URL(), []*redistest.Server{master}},
		"sentinel": {sentinel.SentinelURL(), []*redistest.Server{master}},
		"cluster":  {redistest.ClusterURL(masters), masters},
	} {
		for _, fault := range []redistest.Fault{redistest.DropReply, redistest.CutBefore} {
			t.Run(name, func(t *testing.T) {
				o := testOptions()
				direct := openTest(t, c.url, o)
				o.RetryFor = 1
				proxies := through(t, &o, c.servers...)
				s := openTest(t, c.url, o)
				task := create(t, direct, newTask(t))
				read(t, s, task.ID, shim.Summary)
				for what, do := range map[string]struct {
					match string
					f     func() error
				}{
					"read":   {"hmget", func() error { _, err := s.Get(t.Context(), task.ID, shim.Summary); return err }},
					"exists": {"exists", func() error { _, err := s.Batches(t.Context(), task.ID, 0); return err }},
					"write": {"MARK", func() error {
						_, err := s.Apply(t.Context(), task.ID, &held, shim.Change{Op: "MARK", StatusMessage: new(string)})
						return err
					}},
					"pipeline": {"smembers", func() error {
						return s.do(t.Context(), "test", func() error {
							p := s.client.Pipeline()
							for range 2 {
								p.SMembers(t.Context(), s.keys.run(shard(task.ID), held.Replica))
							}
							_, err := p.Exec(t.Context())
							return err
						})
					}},
				} {
					usable(t, s)
					hits := 0
					for _, p := range proxies {
						hits -= p.Hit()
						p.Next(fault, do.match)
					}
					is(t, do.f(), shim.ErrUnavailable)
					for _, p := range proxies {
						hits += p.Hit()
						p.Next(0, "")
					}
					if hits != 1 {
						t.Errorf("%s: sent %d times", what, hits)
					}
					usable(t, s)
					must(t, do.f())
				}
			})
		}
	}
}
