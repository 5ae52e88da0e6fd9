package chaos

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"testing"
	"time"

	"taskgate/internal/programtest"
	"taskgate/internal/redistest"
)

// failover is a Redis with one replica at a time, which takes its place again and
// again. Replication is asynchronous, and before each failover it lags: the replica
// misses the last moments of its master.
type failover struct {
	t     *testing.T
	front *redistest.Proxy // to the master
	link  *redistest.Proxy // from the replica to its master
	judge *judge
	wait  bool // wait_replicas: 1

	master, replica *redistest.Server
}

// longestLag is how much of the last moments a replica misses at most.
const longestLag = 1500 * time.Millisecond

func newFailover(t *testing.T, j *judge, wait bool) *failover {
	t.Helper()
	f := &failover{t: t, judge: j, wait: wait, master: redistest.Start(t, "--repl-diskless-sync-delay", "0")}
	f.front, f.link = redistest.NewProxy(t, f.master.Addr), redistest.NewProxy(t, f.master.Addr)
	f.follow()
	return f
}

// follow starts a replica of the master and waits until it has what that has.
func (f *failover) follow() {
	f.t.Helper()
	host, port, err := net.SplitHostPort(f.link.Addr)
	if err != nil {
		f.t.Fatal(err)
	}
	f.replica = redistest.Start(f.t, "--replicaof", host+" "+port, "--repl-diskless-sync-delay", "0")
	ctx, stop := context.WithTimeout(context.Background(), startTimeout)
	defer stop()
	for !strings.Contains(fmt.Sprint(f.replica.Do("info", "replication")), "master_link_status:up") {
		if !wait(ctx, 20*time.Millisecond) {
			f.t.Fatal("the replica does not follow its master")
		}
	}
}

// over kills the master after its replica has fallen behind, and has that one take
// its place.
func (f *failover) over(ctx context.Context, lag time.Duration) {
	cut := time.Now()
	f.link.Point("")
	wait(ctx, lag)
	f.master.Kill()
	f.replica.Do("replicaof", "no", "one")
	if !f.wait {
		f.judge.forgive(cut.Add(-margin), time.Now().Add(margin))
	}
	f.master = f.replica
	f.front.Point(f.master.Addr)
	f.link.Point(f.master.Addr)
	f.follow()
}

// margin is how much more than the lag may be missing: what was on its way when
// the link was cut, and handles on their way when the master was killed.
const margin = 100 * time.Millisecond

// harm has one failover after the other.
func (f *failover) harm(ctx context.Context, injected *tally) {
	r := rand.New(rand.NewPCG(*seed, 3))
	for wait(ctx, time.Second+time.Duration(r.Int64N(int64(2*time.Second)))) {
		injected.add("redis failed over to its replica")
		f.over(ctx, time.Duration(r.Int64N(int64(longestLag))))
	}
}

// Redis fails over, and nothing that was acknowledged is lost where gateways wait
// for a replica. Where they do not, tasks may be lost that were made in the moments
// that the replica misses; but the ends of all others are what they were.
func TestFailover(t *testing.T) {
	programtest.Long(t)
	for _, replicas := range []int{1, 0} {
		t.Run(fmt.Sprintf("wait_replicas=%d", replicas), func(t *testing.T) {
			t.Parallel()
			j := newJudge()
			j.forgetful, j.lossy = true, replicas == 0
			f := newFailover(t, j, replicas > 0)
			u := startUpstream(t)
			store := f.front.URL()
			fleet := newFleet(t, j, u.url, settings{replicas: replicas, heartbeat: 5 * time.Second},
				func() *redistest.Server { return f.master }, store, store, store)
			c := newClients(t, fleet, j)
			c.live(t, u, runLimit, f.harm, c.upTo(*calls/3, *workers/2))
		})
	}
}
