// Command bench measures what the gateway costs. It runs a null upstream, a bare
// reverse proxy, the gateway, a Redis and a handler that does one Redis GET, each
// as a process of its own on loopback, and drives all of them with the same
// client: raw keep-alive connections with one goroutine each. The variants take
// turns within each round, so that whatever else the machine does falls on all of
// them alike, and what is reported are medians over the rounds and their ratios.
//
// Then it parks tasks: calls that a server of either era holds open, on one gateway,
// to see what they cost in memory, what the gateway does while nothing happens, and
// whether they slow down anything else. Tasks end on one of two gateways over a Redis
// while clients wait for them on the other, to see how soon they hear of it. At last
// tasks stream: how long partial results take to a listener at either of two replicas. Then
// one principal attacks, by one way after the other, while another one makes plain calls. The
// last part compares calls over standard input and output with a bare pipe.
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
	"net"
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
	to     string // the address of what is behind it, or what it attacks
	attack string // the name of the attack
	length time.Duration
}

func main() {
	var r role
	flag.StringVar(&r.listen, "listen", "", "address to serve on, in a role")
	flag.StringVar(&r.to, "to", "", "address of what is behind, in a role")
	flag.StringVar(&r.attack, "attack", "", "how to attack, in that role")
	flag.DurationVar(&r.length, "for", 0, "how long to attack, in that role")
	as := flag.String("as", "", "be a part of the benchmark: upstream, proxy, receiver, redisget, hold, release, talk, stdio or attack")
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
		return measureAll(ctx, taskgate, settings)
	case "upstream":
		return serve(ctx, r.listen, http.HandlerFunc(nullUpstream))
	case "receiver":
		return serve(ctx, r.listen, http.HandlerFunc(receive))
	case "proxy":
		return serve(ctx, r.listen, reverseProxy(r.to))
	case "talk":
		return serve(ctx, r.listen, http.HandlerFunc(talk))
	case "hold":
		return serve(ctx, r.listen, newHolder(), smallBuffer)
	case "release":
		return serve(ctx, r.listen, new(releaser))
	case "attack":
		return attackAs(ctx, os.Stdout, r.to, r.attack, r.length)
	case "stdio":
		return nullPipe(os.Stdin, os.Stdout)
	case "redisget":
		return serve(ctx, r.listen, redisGet(r.to))
	default:
		return fmt.Errorf("no such part: %q", as)
	}
}

// measureAll measures what the settings do not leave out.
func measureAll(ctx context.Context, taskgate string, s settings) error {
	if s.rounds > 0 {
		if err := measure(ctx, os.Stdout, taskgate, s); err != nil {
			return err
		}
	}
	if s.parked > 0 {
		s.rounds = max(s.rounds, 1)
		if err := measureParked(ctx, os.Stdout, taskgate, s); err != nil {
			return err
		}
	}
	if s.asked > 0 {
		if err := measureAsked(ctx, os.Stdout, taskgate, s.asked); err != nil {
			return err
		}
	}
	if s.waiters > 0 {
		if err := measureWake(ctx, os.Stdout, taskgate, s); err != nil {
			return err
		}
	}
	if s.streams > 0 {
		if err := measureStream(ctx, os.Stdout, taskgate, s.streams); err != nil {
			return err
		}
	}
	if s.attack > 0 {
		if err := measureAttacks(ctx, os.Stdout, taskgate, s.only, time.Duration(s.attack)*time.Second); err != nil {
			return err
		}
	}
	if s.stdio > 0 {
		return measureStdio(ctx, os.Stdout, taskgate, s)
	}
	return nil
}

// smallBuffer keeps the kernel from taking 4 MB of each result that the gateway does not read yet:
// of hundreds that is more than its TCP may have in all, and then it drops what others send.
func smallBuffer(conn net.Conn) {
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetWriteBuffer(256 << 10) // what it costs to go without is only seen in the numbers
	}
}

// serve answers until ctx ends. opened are called with each connection.
func serve(ctx context.Context, listen string, handler http.Handler, opened ...func(net.Conn)) error {
	server := &http.Server{Addr: listen, Handler: handler, ReadHeaderTimeout: 10 * time.Second}
	server.ConnContext = func(ctx context.Context, conn net.Conn) context.Context {
		for _, f := range opened {
			f(conn)
		}
		return ctx
	}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// settings say how much is measured.
type settings struct {
	rounds  int           // of the first part; 0 leaves it out, and the others have one
	length  time.Duration // of one measurement
	conns   []int
	only    string // measure only the variants of the first part, and the attacks, whose names contain this
	parked  int    // tasks, in the second part; 0 leaves it out
	asked   int    // calls that wait for an answer, in the same part; 0 leaves that out
	waiters int    // clients, in the third part; 0 leaves it out
	streams int    // tasks, in the fourth part; 0 leaves it out
	attack  int    // seconds of each attack, in the fifth part; 0 leaves it out
	stdio   int    // rounds of the sixth part; 0 leaves it out
}

// settingsFromEnv reads BENCH_ONLY, BENCH_ROUNDS, BENCH_SECONDS, BENCH_PARKED, BENCH_ASKED,
// BENCH_WAITERS, BENCH_STREAMS, BENCH_ATTACK (seconds) and BENCH_STDIO (rounds).
func settingsFromEnv() (settings, error) {
	s := settings{rounds: 7, length: 700 * time.Millisecond, conns: []int{1, 16, 64}, parked: 10_000, asked: 5_000, waiters: 1_000, streams: 1_000, attack: 5, stdio: 7, only: os.Getenv("BENCH_ONLY")}
	for name, to := range map[string]*int{"BENCH_ROUNDS": &s.rounds, "BENCH_PARKED": &s.parked, "BENCH_ASKED": &s.asked, "BENCH_WAITERS": &s.waiters, "BENCH_STREAMS": &s.streams, "BENCH_ATTACK": &s.attack, "BENCH_STDIO": &s.stdio} {
		if v := os.Getenv(name); v != "" {
			n, err := strconv.Atoi(v)
			if err != nil || n < 0 {
				return s, fmt.Errorf("%s=%s is not a number", name, v)
			}
			*to = n
		}
	}
	if v := os.Getenv("BENCH_SECONDS"); v != "" {
		f, err := strconv.ParseFloat(v, 64)
		if err != nil || f <= 0 || f > 60 {
			return s, fmt.Errorf("BENCH_SECONDS=%s is not a number up to 60", v)
		}
		s.length = time.Duration(f * float64(time.Second))
	}
	return s, nil
}
