package redistest

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"taskgate/internal/proc"
)

// Replica runs a replica of the server at an address, which may be that of a Proxy
// in front of it, until the test ends. It has what its master has when this returns.
func Replica(t TB, master string, args ...string) *Server {
	t.Helper()
	host, port, err := net.SplitHostPort(master)
	if err != nil {
		t.Fatalf("%v", err)
	}
	s := Start(t, append([]string{"--replicaof", host + " " + port, "--repl-diskless-sync-delay", "0"}, args...)...)
	s.WaitInfo("replication", "master_link_status:up")
	return s
}

// Promote makes a replica a master, as a failover does.
func (s *Server) Promote() {
	s.t.Helper()
	s.Do("replicaof", "no", "one")
}

// WaitInfo waits until a section of INFO has all these texts.
func (s *Server) WaitInfo(section string, texts ...string) {
	s.t.Helper()
	s.waitReply(texts, "info", section)
}

// WaitCluster waits until CLUSTER INFO has all these texts.
func (s *Server) WaitCluster(texts ...string) {
	s.t.Helper()
	s.waitReply(texts, "cluster", "info")
}

// failover is how long a Redis may take to choose another master.
const failover = 55 * time.Second

// waitReply waits until the reply to a command has all these texts.
func (s *Server) waitReply(texts []string, command ...any) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), failover)
	defer cancel()
	c := s.client()
	defer c.Close()
	err := poll(ctx, func() error {
		text, err := c.Do(ctx, command...).Text()
		for _, want := range texts {
			if err == nil && !strings.Contains(text, want) {
				err = fmt.Errorf("not yet %s", want)
			}
		}
		return err
	})
	if err != nil {
		s.t.Fatalf("redis %v: %v", command, err)
	}
}

// Freeze stops the process where it is, as a machine that hangs does: connections
// stay up and nothing is answered, until Thaw.
func (s *Server) Freeze() { s.signal(proc.Freeze) }

// Thaw lets a frozen server go on.
func (s *Server) Thaw() { s.signal(proc.Thaw) }

func (s *Server) signal(n syscall.Signal) {
	s.t.Helper()
	if err := s.process.Signal(n); err != nil {
		s.t.Fatalf("%v", err)
	}
}

// Relaunch runs the server again with further arguments, with the data that it
// finds on disk, and does not wait until it has loaded them.
func (s *Server) Relaunch(args ...string) {
	s.t.Helper()
	if err := s.launch(args...); err != nil {
		s.t.Fatalf("%v", err)
	}
}

// Path is where the server keeps a file of this name.
func (s *Server) Path(name string) string { return filepath.Join(s.dir, name) }

// MasterName is what sentinels call the master that they watch.
const MasterName = "mymaster"

// Sentinel runs one sentinel that watches a master and, alone, decides when it is
// down. It knows all of the master's replicas when this returns.
func Sentinel(t TB, master *Server, replicas int) *Server {
	t.Helper()
	host, port, err := net.SplitHostPort(master.Addr)
	if err != nil {
		t.Fatalf("%v", err)
	}
	config := filepath.Join(t.TempDir(), "sentinel.conf")
	text := fmt.Sprintf("sentinel monitor %[1]s %[2]s %[3]s 1\nsentinel down-after-milliseconds %[1]s 2000\n"+
		"sentinel failover-timeout %[1]s 5000\n", MasterName, host, port)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatalf("%v", err)
	}
	s := run(t, &Server{t: t, binary: find(t), dir: t.TempDir(), first: []string{config, "--sentinel"}})
	s.hurry()
	s.WaitInfo("sentinel", fmt.Sprintf("master0:name=%s,status=ok,address=%s,slaves=%d,sentinels=1",
		MasterName, master.Addr, replicas))
	return s
}

// hurry has a sentinel look at the others more often than it does by itself. It only
// promotes a replica that it has asked lately (info-period, 10 s by default), and else
// tries again after twice the failover-timeout; and a master that comes back is made a
// replica after four times the publish-period (2 s). It pings once in ping-period (1 s),
// and must have done so more than once before it takes a server for down: a master that it
// has just promoted would be replaced by the old one. It shall not do nothing for half a
// minute, either, because it had to wait for the processor (tilt-trigger, 2 s). A
// sentinel before Redis 7 cannot be hurried and takes its time.
func (s *Server) hurry() {
	c := s.client()
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	err := c.Do(ctx, "sentinel", "debug", "info-period", 500, "ping-period", 200, "publish-period", 250,
		"min-link-reconnect-period", 1000, "tilt-trigger", 20000).Err()
	if err != nil && !strings.HasPrefix(err.Error(), "ERR") {
		s.t.Fatalf("sentinel: %v", err)
	}
}

// SentinelURL is the store URL of the master that a sentinel watches.
func (s *Server) SentinelURL() string { return "redis+sentinel://" + s.Addr + "/" + MasterName }

// WaitMaster waits until a sentinel names this server as the master.
func (s *Server) WaitMaster(master *Server) {
	s.t.Helper()
	s.WaitInfo("sentinel", "address="+master.Addr+",")
}
