package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"

	"taskgate/internal/work"
)

// clusterSlots is how many slots a Redis Cluster has.
const clusterSlots = 16384

func portOf(addr string) string {
	_, port, _ := net.SplitHostPort(addr)
	return port
}

// askRedis sends one command, and returns what a Redis says until it hangs up.
func askRedis(addr, line string) (string, error) {
	conn, err := net.DialTimeout("tcp", addr, dialTimeout)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, line+"\r\nQUIT\r\n"); err != nil {
		return "", err
	}
	text, err := io.ReadAll(bufio.NewReader(conn))
	if err == nil && strings.HasPrefix(string(text), "-") {
		err = fmt.Errorf("%s: %s", line, text)
	}
	return string(text), err
}

// sumUse is what all processes have used so far, and have now.
func (d *deployment) sumUse() (u scaleUse, err error) {
	for _, g := range d.gateways {
		of, err := statOf(g.PID())
		if err != nil {
			return u, err
		}
		u.resident += int64(of.ResidentMemory())
		u.gateCPU += time.Duration(of.CPUTime() * float64(time.Second))
	}
	for i, addr := range d.masters {
		of, err := statOf(d.redis[i].PID())
		if err != nil {
			return u, err
		}
		u.masterCPU += time.Duration(of.CPUTime() * float64(time.Second))
		n, err := commandsOf(addr)
		if err != nil {
			return u, err
		}
		u.commands += n
		info, err := askRedis(addr, "INFO memory")
		if err != nil {
			return u, err
		}
		_, rest, _ := strings.Cut(info, "\nused_memory:")
		digits, _, _ := strings.Cut(rest, "\r")
		used, err := strconv.ParseInt(digits, 10, 64)
		if err != nil {
			return u, err
		}
		u.redis += used
	}
	return u, nil
}

// during is what is used while something is done. The memory is that at its end.
func (d *deployment) during(do func() error) (scaleUse, error) {
	before, err := d.sumUse()
	if err != nil {
		return before, err
	}
	begin := time.Now()
	if err := do(); err != nil {
		return before, err
	}
	took := time.Since(begin)
	after, err := d.sumUse()
	after.took = took
	after.gateCPU, after.masterCPU, after.commands = after.gateCPU-before.gateCPU, after.masterCPU-before.masterCPU, after.commands-before.commands
	return after, err
}

// watchIdle is what is used while nothing happens.
func (d *deployment) watchIdle(ctx context.Context) (scaleUse, error) {
	if err := work.Pause(ctx, scaleSettled); err != nil {
		return scaleUse{}, err
	}
	return d.during(func() error { return work.Pause(ctx, scaleIdle) })
}

// String says what was used.
func (u scaleUse) String() string {
	return fmt.Sprintf("%.1f s, with %.1f s of the gateways' processors, %.1f s of those of Redis, and %d commands", u.took.Seconds(), u.gateCPU.Seconds(), u.masterCPU.Seconds(), u.commands)
}

// percent is a part of one core.
func percent(cpu, took time.Duration) float64 { return 100 * cpu.Seconds() / took.Seconds() }

// scaleTables are what was measured, what is calculated of it, and what a start and a loss took.
func scaleTables(all []scaled) string {
	var measured, rest, ends strings.Builder
	fmt.Fprintf(&measured, "\n### Scale, measured: %d replicas, a Redis Cluster of %d\n\n", scaleReplicas, scaleMasters)
	measured.WriteString("| what | how many | gateways, resident | gateways, CPU idle | Redis, memory | Redis, CPU idle | commands/s, idle | to make one: CPU of the gateways, of Redis, commands |\n|---|---:|---:|---:|---:|---:|---:|---:|\n")
	fmt.Fprintf(&rest, "\n### Scale, calculated for %d: the difference between the last two rows of each\n\n", calculated)
	rest.WriteString("| what | each: memory of a gateway, of Redis | gateways, memory | gateways, CPU idle | Redis, memory | Redis, CPU idle | commands/s, idle |\n|---|---:|---:|---:|---:|---:|---:|\n")
	ends.WriteString("\n### Scale, a replica starts, and one is lost\n\n| with | until a new replica answers | after the loss of one |\n|---|---|---|\n")
	for _, s := range all {
		for _, l := range s.levels {
			made := "-"
			if n := l.n - s.levels[0].n; n > 0 {
				step := float64(s.levels[1].n)
				made = fmt.Sprintf("%.0f µs, %.0f µs, %.1f", float64(l.add.gateCPU.Microseconds())/step, float64(l.add.masterCPU.Microseconds())/step, float64(l.add.commands)/step)
			}
			i := l.idle
			fmt.Fprintf(&measured, "| %s | %d | %d MB | %.1f %% | %d MB | %.1f %% | %.0f | %s |\n", s.name, l.n, i.resident>>20, percent(i.gateCPU, i.took),
				i.redis>>20, percent(i.masterCPU, i.took), float64(i.commands)/i.took.Seconds(), made)
		}
		a, b := s.levels[len(s.levels)-2], s.levels[len(s.levels)-1]
		slope := func(of func(scaleUse) float64) float64 { return (of(b.idle) - of(a.idle)) / float64(b.n-a.n) }
		memory, redis := slope(func(u scaleUse) float64 { return float64(u.resident) }), slope(func(u scaleUse) float64 { return float64(u.redis) })
		gate := slope(func(u scaleUse) float64 { return percent(u.gateCPU, u.took) })
		master := slope(func(u scaleUse) float64 { return percent(u.masterCPU, u.took) })
		commands := slope(func(u scaleUse) float64 { return float64(u.commands) / u.took.Seconds() })
		fmt.Fprintf(&rest, "| %s | %.1f kB, %.2f kB | %.0f MB | %.0f %% | %.0f MB | %.0f %% | %.0f |\n", s.name, memory/1024, redis/1024,
			memory*calculated/(1<<20), gate*calculated, redis*calculated/(1<<20), master*calculated, commands*calculated)
		fmt.Fprintf(&ends, "| %d %s | %s | %s |\n", b.n, s.name, s.started, s.lost)
	}
	return measured.String() + rest.String() + ends.String()
}
