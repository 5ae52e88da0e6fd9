package redisstore

import (
	"context"
	"fmt"
	"net"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

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
				task := create(t, direct, newTask())
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
					"pipeline": {"zrange", func() error {
						return s.doRepeated(t.Context(), "test", func(context.Context) error {
							p := s.client.Pipeline()
							for range 2 {
								p.ZRange(t.Context(), s.keys.run(shard(task.ID), held.Replica), 0, -1)
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

// move is a slot on its way from one master to another.
type move struct {
	slot     int64
	from, to *redistest.Server
}

// begin has the slot begin to move.
func (m *move) begin() {
	m.to.Do("cluster", "setslot", m.slot, "importing", m.from.Do("cluster", "myid"))
	m.from.Do("cluster", "setslot", m.slot, "migrating", m.to.Do("cluster", "myid"))
}

// keys moves the keys.
func (m *move) keys() {
	host, port, _ := net.SplitHostPort(m.to.Addr)
	args := []any{"migrate", host, port, "", 0, 5000, "keys"}
	m.from.Do(append(args, m.from.Do("cluster", "getkeysinslot", m.slot, 1000).([]any)...)...)
}

// end gives the slot to its new master.
func (m *move) end() {
	id := m.to.Do("cluster", "myid")
	m.to.Do("cluster", "setslot", m.slot, "node", id)
	m.from.Do("cluster", "setslot", m.slot, "node", id)
}

// refused is how often the masters have answered TRYAGAIN.
func (m *move) refused() int {
	all := 0
	for _, s := range []*redistest.Server{m.from, m.to} {
		if found := tryAgain.FindStringSubmatch(fmt.Sprint(s.Do("info", "errorstats"))); found != nil {
			n, _ := strconv.Atoi(found[1])
			all += n
		}
	}
	return all
}

var tryAgain = regexp.MustCompile(`errorstat_TRYAGAIN:count=(\d+)`)

// While a slot moves, its tasks can be read. What changes them is repeated for as long
// as its caller has time, and done once the slot has moved.
func TestMovingSlot(t *testing.T) {
	t.Parallel()
	masters := redistest.Cluster(t, 3)
	o := testOptions()
	o.RetryFor = 1
	s := openTest(t, redistest.ClusterURL(masters), o)
	task := create(t, s, ofShard(t, s, tagsOf(t, masters[0], 0)))
	tag := []string{shard(task.ID)}
	ended, other := create(t, s, ofShard(t, s, tag)), ofShard(t, s, tag)
	goodbye(t, s, task)
	m := &move{masters[0].Do("cluster", "keyslot", "{"+tag[0]+"}").(int64), masters[0], masters[1]}
	m.begin()

	message := "new"
	say := func(ctx context.Context) error {
		_, err := s.Apply(ctx, task.ID, &held, shim.Change{Op: "says", StatusMessage: &message})
		return err
	}
	err := say(t.Context())
	is(t, err, shim.ErrUnavailable)
	if !strings.Contains(err.Error(), "TRYAGAIN") {
		t.Errorf("no slot moves: %v", err)
	}
	short, stop := context.WithTimeout(t.Context(), 2*time.Second)
	defer stop()
	before := m.refused()
	is(t, say(short), shim.ErrUnavailable)
	if n := m.refused() - before; n < 3 {
		t.Errorf("tried %d times in 2 s", n)
	}
	long, stop := context.WithTimeout(t.Context(), 10*limit)
	defer stop()
	adopted := make(chan error, 1)
	go func() { _, err := s.Adopt(long, "heir", []string{"up"}, 5); adopted <- err }()
	is(t, receive(t, adopted, "an adoption that waits for no slot"), shim.ErrUnavailable)

	done := make(chan error, 4)
	go func() { done <- say(long) }()
	go func() { _, err := s.Create(long, other); done <- err }()
	go func() { done <- appendBatches(long, s, task.ID, 0, content("[0]")) }()
	go func() {
		_, err := s.Apply(long, ended.ID, nil, shim.Change{Op: "ends", To: shim.Cancelled})
		done <- err
	}()
	for _, step := range []func(){func() {}, m.keys} {
		step()
		before := m.refused()
		eventually(t, "the changes are repeated", func() bool { return m.refused() > before+20 })
		same(t, task.Op, read(t, s, task.ID, shim.Summary).Op)
	}
	same(t, 0, len(done))
	m.end()
	for range cap(done) {
		must(t, receive(t, done, "a change"))
	}
	same(t, message, read(t, s, task.ID, shim.Summary).StatusMessage)
	same(t, []string{"[0]"}, batches(t, s, task.ID))
	same(t, shim.Cancelled, read(t, s, ended.ID, shim.Summary).Status)
	same(t, other.Op, read(t, s, other.ID, shim.Summary).Op)
}
