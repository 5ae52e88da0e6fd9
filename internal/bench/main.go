// Command bench measures what the gateway costs. It runs a null upstream, a bare
// reverse proxy, the gateway, a Redis and a handler that does one Redis GET, each
// as a process of its own on loopback, and drives all of them with the same
// client: raw keep-alive connections with one goroutine each. The variants take
// turns within each round, so that whatever else the machine does falls on all of
// them alike, and what is reported are medians over the rounds and their ratios.
//
// Then it parks tasks: calls that a server of either era holds open, on one gateway,
// to see what they cost in memory, what the gateway does while nothing happens, and
// whether they slow down anything else.
//
//	make bench
//	BENCH_ROUNDS=15 BENCH_SECONDS=1 BENCH_PARKED=20000 make bench
//
// docs/performance.md says how to read the tables.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"
)

// role is what one process of the benchmark is.
type role struct {
	listen string // where to serve
	to     string // the address of what is behind it
}

func main() {
	var r role
	flag.StringVar(&r.listen, "listen", "", "address to serve on, in a role")
	flag.StringVar(&r.to, "to", "", "address of what is behind, in a role")
	as := flag.String("as", "", "be a part of the benchmark: upstream, proxy, redisget or hold")
	taskgate := flag.String("taskgate", "bin/taskgate", "the gateway's program")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, *as, r, *taskgate)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, as string, r role, taskgate string) error {
	switch as {
	case "":
		settings, err := settingsFromEnv()
		if err != nil {
			return err
		}
		if err := measure(ctx, os.Stdout, taskgate, settings); err != nil || settings.parked == 0 {
			return err
		}
		return measureParked(ctx, os.Stdout, taskgate, settings)
	case "upstream":
		return serve(ctx, r.listen, http.HandlerFunc(nullUpstream))
	case "proxy":
		return serve(ctx, r.listen, reverseProxy(r.to))
	case "hold":
		return serve(ctx, r.listen, newHolder())
	case "redisget":
		return serve(ctx, r.listen, redisGet(r.to))
	default:
		return fmt.Errorf("no such part: %q", as)
	}
}

// serve answers until ctx ends.
func serve(ctx context.Context, listen string, handler http.Handler) error {
	server := &http.Server{Addr: listen, Handler: handler, ReadHeaderTimeout: 10 * time.Second}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// settings say how much is measured.
type settings struct {
	rounds int
	length time.Duration // of one measurement
	conns  []int
	parked int // tasks, in the second part; 0 leaves it out
}

// settingsFromEnv reads BENCH_ROUNDS, BENCH_SECONDS and BENCH_PARKED.
func settingsFromEnv() (settings, error) {
	s := settings{rounds: 7, length: 700 * time.Millisecond, conns: []int{1, 16, 64}, parked: 10_000}
	if v := os.Getenv("BENCH_ROUNDS"); v != "" {
		n, err := strconv.Atoi(v)
		if err != nil || n < 1 {
			return s, fmt.Errorf("BENCH_ROUNDS=%s is not a positive number", v)
		}
		s.rounds = n
	}
	if v := os.Getenv("BENCH_SECONDS"); v != "" {
		f, err := strconv.ParseFloat(v, 64)
		if err != nil || f <= 0 || f > 60 {
			return s, fmt.Errorf("BENCH_SECONDS=%s is not a number up to 60", v)
		}
		s.length = time.Duration(f * float64(time.Second))
	}
	if v := os.Getenv("BENCH_PARKED"); v != "" {
		n, err := strconv.Atoi(v)
		if err != nil || n < 0 {
			return s, fmt.Errorf("BENCH_PARKED=%s is not a number", v)
		}
		s.parked = n
	}
	return s, nil
}
