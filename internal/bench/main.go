// Command bench measures what the gateway costs beside a bare reverse proxy. Each party is a
// process of its own on loopback: a server that answers at once, the proxy (and one with a pool of
// buffers), one or two gateways and a Redis. One client drives all of them, over raw keep-alive connections with one goroutine
// each.
//
// It has five parts, which are tables: calls (plain, with an event, large, made a task, and
// tasks/get), tasks over each store, tasks that are parked at a server, jobs of a server that the
// gateway asks for, and clients that wait at one gateway for tasks of another. -only names the part
// or the rows to measure. A sixth part, for "-only scale" alone, is a deployment of several replicas
// on a Redis Cluster with many clients.
//
//	make bench
//	make bench BENCH='-only large -rounds 15'
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
	"strings"
	"syscall"
	"time"
)

// settings say how much is measured.
type settings struct {
	taskgate string        // the gateway's program
	only     string        // measure only rows and parts whose names contain this
	rounds   int           // of the calls
	length   time.Duration // of one measurement
	kept     int           // tasks in a folder at a start
	parked   int           // tasks
	jobs     int           // running jobs
	every    time.Duration // the pause between two questions about a job
	waiters  int           // clients
	scale    int           // sessions, streams and tasks, and twice as many
}

// wants reports whether something is to be measured.
func (s settings) wants(name string) bool { return strings.Contains(name, s.only) }

func main() {
	var s settings
	flag.StringVar(&s.taskgate, "taskgate", "bin/taskgate", "the gateway's program")
	flag.StringVar(&s.only, "only", "", "measure only what has this in its name")
	flag.IntVar(&s.rounds, "rounds", 7, "how often each measurement is repeated")
	flag.DurationVar(&s.length, "for", 700*time.Millisecond, "how long one measurement takes")
	flag.IntVar(&s.kept, "kept", 100_000, "how many tasks a start finds in a folder")
	flag.IntVar(&s.parked, "parked", 10_000, "how many tasks are parked")
	flag.IntVar(&s.jobs, "jobs", 10_000, "how many jobs run")
	flag.DurationVar(&s.every, "every", 30*time.Second, "how often the gateway asks for a job")
	flag.IntVar(&s.waiters, "waiters", 1_000, "how many clients wait")
	flag.IntVar(&s.scale, "scale", 5_000, "with -only scale: how many sessions, streams and tasks, and then twice as many")
	as := flag.String("as", "", "be a part of the benchmark: server, proxy or pooled")
	listen := flag.String("listen", "", "where that part listens")
	to := flag.String("to", "", "the address of what is behind the proxy")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, *as, *listen, *to, s)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, as, listen, to string, s settings) error {
	switch as {
	case "":
		return measureAll(ctx, s)
	case "server":
		return serve(ctx, listen, new(server))
	case "proxy":
		return serve(ctx, listen, reverseProxy(to, nil))
	case "pooled":
		return serve(ctx, listen, reverseProxy(to, new(buffers)))
	default:
		return fmt.Errorf("no such part: %q", as)
	}
}

// measureAll measures all parts and prints their tables.
func measureAll(ctx context.Context, s settings) error {
	for _, line := range machine(ctx) {
		fmt.Println("-", line)
	}
	parts := []func(context.Context, settings) (string, error){measureCalls, measureStores, measureParked, measureJobs, measureWaiting}
	if s.only == "scale" { // it takes long, and has a command of its own
		parts = []func(context.Context, settings) (string, error){measureScale}
	}
	for _, measure := range parts {
		table, err := measure(ctx, s)
		if err != nil {
			return err
		}
		fmt.Print(table)
	}
	return nil
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
