package redistest

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"

	"taskgate/internal/proc"
)

// slots is how many slots a Redis Cluster has.
const slots = 16384

// Cluster runs n masters as one Redis Cluster until the test ends, with further
// arguments for each.
func Cluster(t TB, n int, args ...string) []*Server {
	t.Helper()
	servers := make([]*Server, n)
	for i := range servers {
		servers[i] = startNode(t, args)
		servers[i].Do("cluster", "set-config-epoch", i+1)
		servers[i].Do("cluster", "addslotsrange", i*slots/n, (i+1)*slots/n-1)
		for _, other := range servers[:i] { // by hearsay it takes seconds
			servers[i].meet(other)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var all sync.WaitGroup
	errs := make([]error, n)
	for i, s := range servers {
		all.Go(func() { errs[i] = s.waitCluster(ctx, n, n) })
	}
	all.Wait()
	for _, err := range errs {
		if err != nil {
			t.Fatalf("redis cluster: %v", err)
		}
	}
	return servers
}

// startNode runs a server that belongs to no cluster yet.
func startNode(t TB, args []string) *Server {
	t.Helper()
	bus, err := proc.FreeAddr()
	if err != nil {
		t.Fatalf("%v", err)
	}
	_, port, _ := net.SplitHostPort(bus)
	return Start(t, append([]string{
		"--cluster-enabled", "yes", "--cluster-port", port, "--cluster-node-timeout", "5000",
		"--repl-diskless-sync-delay", "0",
	}, args...)...)
}

// meet introduces a node to another one of its cluster.
func (s *Server) meet(other *Server) {
	s.t.Helper()
	host, port, _ := net.SplitHostPort(other.Addr)
	s.Do("cluster", "meet", host, port, other.busPort())
}

// ClusterReplica adds a replica of the master with this index to a cluster of
// masters and replicas. It has what its master has when this returns, and the
// others know it.
func ClusterReplica(t TB, cluster []*Server, masters, of int, args ...string) *Server {
	t.Helper()
	s := startNode(t, args)
	for _, other := range cluster {
		s.meet(other)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := s.waitCluster(ctx, len(cluster)+1, masters); err != nil {
		t.Fatalf("redis cluster: %v", err)
	}
	s.Do("cluster", "replicate", cluster[of].Do("cluster", "myid"))
	s.WaitInfo("replication", "role:slave", "master_link_status:up")
	id := fmt.Sprint(s.Do("cluster", "myid"))
	for _, other := range cluster {
		err := poll(ctx, func() error {
			for line := range strings.Lines(fmt.Sprint(other.Do("cluster", "nodes"))) {
				if strings.HasPrefix(line, id) && strings.Contains(line, " slave ") {
					return nil
				}
			}
			return fmt.Errorf("%s does not know of the replica", other.Addr)
		})
		if err != nil {
			t.Fatalf("redis cluster: %v", err)
		}
	}
	return s
}

// busPort is the port of the cluster bus.
func (s *Server) busPort() string { return s.args[3] }

// waitCluster waits until a server knows n nodes, and all slots with the masters.
func (s *Server) waitCluster(ctx context.Context, n, masters int) error {
	c := s.client()
	defer c.Close()
	return poll(ctx, func() error {
		info, err := c.ClusterInfo(ctx).Result()
		if err != nil {
			return err
		}
		for _, want := range []string{"cluster_state:ok", fmt.Sprintf("cluster_known_nodes:%d", n), fmt.Sprintf("cluster_size:%d", masters)} {
			if !strings.Contains(info, want+"\r\n") {
				return fmt.Errorf("not yet %s", want)
			}
		}
		return nil
	})
}

// ClusterURL is the store URL of a cluster.
func ClusterURL(servers []*Server) string {
	addrs := make([]string, len(servers))
	for i, s := range servers {
		addrs[i] = s.Addr
	}
	return "redis+cluster://" + strings.Join(addrs, ",")
}
