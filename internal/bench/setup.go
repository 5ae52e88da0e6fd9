package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"taskgate/internal/proc"
)

// stage is the running parties of the benchmark.
type stage struct {
	dir                                       string
	processes                                 []*proc.Process
	redis, upstream, proxy, gateway, redisget string // addresses
	issuer                                    *issuer
	observed                                  observed
}

// startTimeout is how long a party may take to listen.
const startTimeout = 10 * time.Second

// gatewayConfig is the gateway under test: one upstream whose tools differ in
// their policy alone.
const gatewayConfig = `
listen: %s
store: redis://%s/0
log: {level: warn}
upstreams:
  - name: bench
    path: /mcp
    url: http://%s/mcp
    era: modern
    max_tasks: 10000000
    max_tasks_per_owner: 10000000
    defaults: {tasks: never}
    tools:
      - {match: auto, tasks: auto, grace: 5s}
      - {match: always, tasks: always, ttl: 5s}
      - {match: keep, tasks: always, ttl: 1h}
`

// newStage starts all parties, each as a process.
func newStage(ctx context.Context, taskgate string) (*stage, error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	dir, err := os.MkdirTemp("", "taskgate-bench")
	if err != nil {
		return nil, err
	}
	s := &stage{dir: dir}
	if err := s.start(ctx, taskgate); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

func (s *stage) start(ctx context.Context, taskgate string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	if err := s.freeAddrs(); err != nil {
		return err
	}
	if s.issuer, err = newIssuer(); err != nil {
		return err
	}
	file := filepath.Join(s.dir, "taskgate.yaml")
	if err := os.WriteFile(file, []byte(fmt.Sprintf(gatewayConfig, s.gateway, s.redis, s.upstream)+s.signInConfig()), 0o600); err != nil {
		return err
	}
	looked, err := s.observedParties(self, taskgate)
	if err != nil {
		return err
	}
	return s.run(ctx, append([]party{
		s.redisParty(),
		{s.upstream, self, []string{"-as", "upstream", "-listen", s.upstream}},
		{s.proxy, self, []string{"-as", "proxy", "-listen", s.proxy, "-to", s.upstream}},
		{s.redisget, self, []string{"-as", "redisget", "-listen", s.redisget, "-to", s.redis}},
	}, append(looked, party{s.gateway, taskgate, []string{"serve", "--config", file}})...))
}

// party is a program that listens.
type party struct {
	addr, path string
	args       []string
}

// redisParty is a Redis that keeps everything in memory.
func (s *stage) redisParty() party {
	_, port, _ := strings.Cut(s.redis, ":")
	return party{s.redis, "redis-server", []string{
		"--bind", "127.0.0.1", "--port", port, "--save", "", "--appendonly", "no", "--dir", s.dir,
	}}
}

// run starts parties one after the other.
func (s *stage) run(ctx context.Context, parties []party) error {
	for _, c := range parties {
		p, err := proc.Start(proc.Command{Name: filepath.Base(c.path), Path: c.path, Args: c.args})
		if err != nil {
			return err
		}
		s.processes = append(s.processes, p)
		if err := p.WaitListening(ctx, c.addr); err != nil {
			return err
		}
	}
	return nil
}

func (s *stage) freeAddrs() error {
	for _, addr := range append(s.observed.addrs(), &s.redis, &s.upstream, &s.proxy, &s.gateway, &s.redisget) {
		free, err := proc.FreeAddr()
		if err != nil {
			return err
		}
		*addr = free
	}
	return nil
}

// close ends the parties, the last one first.
func (s *stage) close() {
	for i := len(s.processes) - 1; i >= 0; i-- {
		s.processes[i].Stop(2 * time.Second)
	}
	if s.issuer != nil {
		s.issuer.close()
	}
	_ = os.RemoveAll(s.dir)
}

// complaints is what the gateway logged, which at this level is nothing.
func (s *stage) complaints() string {
	return s.processes[len(s.processes)-1].Output()
}
