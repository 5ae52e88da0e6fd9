package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"time"
)

// table is one group of variants and what they are compared with.
type table struct {
	title string
	rows  []string
	bases []string
	conns []int // nil for those of the settings
}

var tables = []table{
	{
		title: "Calls",
		rows:  []string{direct, proxied, gatewayPlain, gatewayGrace, gatewayTask},
		bases: []string{direct, proxied},
	},
	{
		title: "Signing in",
		rows:  []string{gatewayPlain, gatewayKeys, gatewayJWT},
		bases: []string{gatewayPlain, gatewayKeys},
	},
	{
		title: "Observed",
		rows:  []string{gatewayPlain, gatewayScraped, gatewaySampled, gatewayTraced},
		bases: []string{gatewayPlain},
	},
	{
		title: "Reading a task",
		rows:  []string{redisRaw, redisClient, redisHTTP, gatewayGet},
		bases: []string{redisRaw, redisHTTP},
	},
	{
		title: "Large results",
		rows:  []string{largeDirect, largeProxied, largeGateway, largeProxiedEvent, largeGatewayEvent},
		bases: []string{largeProxied, largeProxiedEvent},
		conns: largeConns,
	},
}

// report writes the tables.
func report(out io.Writer, found results, s settings, machine []string) error {
	var b bytes.Buffer
	fmt.Fprintf(&b, "Medians of %d rounds of %s per cell; the variants took turns within each round.\n\n", s.rounds, s.length)
	for _, line := range machine {
		fmt.Fprintf(&b, "- %s\n", line)
	}
	for _, t := range tables {
		conns := t.conns
		if conns == nil {
			conns = s.conns
		}
		t.write(&b, found, conns)
	}
	_, err := out.Write(b.Bytes())
	return err
}

// write is the table in markdown. The ratios are of requests per second: 1.00 is
// as fast as what it is compared with.
func (t table) write(b *bytes.Buffer, found results, connCounts []int) {
	fmt.Fprintf(b, "\n### %s\n\n| connections | variant | requests/s | p50 | p99 |", t.title)
	for _, base := range t.bases {
		fmt.Fprintf(b, " rate against %s |", base)
	}
	fmt.Fprintf(b, "\n|---:|---|---:|---:|---:|%s\n", strings.Repeat("---:|", len(t.bases)))
	for _, conns := range connCounts {
		for _, name := range t.rows {
			if found[cell{name, conns}] == nil {
				continue // left out (BENCH_ONLY)
			}
			m := median(found[cell{name, conns}])
			fmt.Fprintf(b, "| %d | %s | %.0f | %s | %s |", conns, name, m.rate, short(m.p50), short(m.p99))
			for _, base := range t.bases {
				if found[cell{base, conns}] == nil {
					b.WriteString(" – |")
					continue
				}
				fmt.Fprintf(b, " %.2f |", m.rate/median(found[cell{base, conns}]).rate)
			}
			b.WriteString("\n")
		}
	}
}

// short is a duration in a unit that suits it.
func short(d time.Duration) string {
	if d < time.Millisecond {
		return fmt.Sprintf("%.0f µs", float64(d)/float64(time.Microsecond))
	}
	return fmt.Sprintf("%.2f ms", float64(d)/float64(time.Millisecond))
}

// machine says what was measured on.
func machine(ctx context.Context, s *stage) []string {
	redis := "Redis of unknown version"
	client := newRedis(s.redis, 1)
	defer client.Close()
	if info, err := client.Info(ctx, "server").Result(); err == nil {
		redis = "Redis " + field(info, "redis_version:")
	}
	cpu := "a processor of unknown make"
	if info, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		cpu = strings.TrimLeft(field(string(info), "model name"), "\t: ")
	}
	kernel := runtime.GOOS
	if name, err := exec.CommandContext(ctx, "uname", "-sr").Output(); err == nil {
		kernel = strings.TrimSpace(string(name))
	}
	return []string{
		fmt.Sprintf("%s, %d cores, shared by all parties", cpu, runtime.NumCPU()),
		fmt.Sprintf("%s, %s, %s", kernel, runtime.Version(), redis),
	}
}

// field is the rest of the first line that begins with the name.
func field(text, name string) string {
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, name); ok {
			return strings.TrimSpace(rest)
		}
	}
	return "unknown"
}
