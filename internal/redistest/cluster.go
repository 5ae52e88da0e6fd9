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

// Cluster runs n masters as one Redis Cluster until the test ends.
func Cluster(t TB, n int) []*Server {
	t.Helper()
	servers := make([]*Server, n)
	for i := range servers {
		bus, err := proc.FreeAddr()
		if err != nil {
			t.Fatalf("%v", err)
		}
		_, port, _ := net.SplitHostPort(bus)
		servers[i] = Start(t, "--cluster-enabled", "yes", "--cluster-port", port, "--cluster-node-timeout", "5000")
		servers[i].Do("cluster", "set-config-epoch", i+1)
		servers[i].Do("cluster", "addslotsrange", i*slots/n, (i+1)*slots/n-1)
		if i > 0 {
			host, port, _ := net.SplitHostPort(servers[0].Addr)
			servers[i].Do("cluster", "meet", host, port, servers[0].busPort())
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var all sync.WaitGroup
	errs := make([]error, n)
	for i, s := range servers {
		all.Go(func() { errs[i] = s.waitCluster(ctx, n) })
	}
	all.Wait()
	for _, err := range errs {
		if err != nil {
			t.Fatalf("redis cluster: %v", err)
		}
	}
	return servers
}

// busPort is the port of the cluster bus.
func (s *Server) busPort() string { return s.args[3] }

// waitCluster waits until a server knows all others and all slots.
func (s *Server) waitCluster(ctx context.Context, n int) error {
	c := s.client()
	defer c.Close()
	return poll(ctx, func() error {
		info, err := c.ClusterInfo(ctx).Result()
		if err != nil {
			return err
		}
		for _, want := range []string{"cluster_state:ok", fmt.Sprintf("cluster_known_nodes:%d", n), fmt.Sprintf("cluster_size:%d", n)} {
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
