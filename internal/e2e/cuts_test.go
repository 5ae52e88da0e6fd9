package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/url"
	"sync"
	"testing"
	"time"

	"taskgate/internal/redistest"
)

// cutAfter is how long a connection lasts at most that comes through a cutter.
const cutAfter = 8 * time.Second

// startCutter is in front of an HTTP server, and ends each connection after cutAfter, whatever goes on on it: as a
// load balancer with a limit does.
func startCutter(t *testing.T, to string) string {
	t.Helper()
	target, err := url.Parse(to)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	var all sync.WaitGroup
	all.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			all.Go(func() { cut(ctx, client, target.Host) })
		}
	})
	t.Cleanup(func() {
		stop()
		_ = listener.Close()
		all.Wait()
	})
	return "http://" + listener.Addr().String()
}

// cut passes on what comes on a connection until its time is over.
func cut(ctx context.Context, client net.Conn, to string) {
	defer client.Close()
	server, err := (&net.Dialer{}).DialContext(ctx, "tcp", to)
	if err != nil {
		return
	}
	defer server.Close()
	ctx, stop := context.WithTimeout(ctx, cutAfter)
	defer stop()
	defer context.AfterFunc(ctx, func() {
		_ = client.Close()
		_ = server.Close()
	})()
	var both sync.WaitGroup
	both.Go(func() { _, _ = io.Copy(server, client); stop() })
	both.Go(func() { _, _ = io.Copy(client, server); stop() })
	both.Wait()
}

// Where a balancer ends each connection after 8 s, and replicas are restarted one after the other meanwhile, the
// official SDKs of the 2025 versions get the answer to each call: they resume its stream, again and again.
// (1.17.5 does not resume the stream of a call, without the gateway either.)
func TestCuts(t *testing.T) {
	t.Parallel()
	for _, sdk := range []string{"1.32.2", "2.4.0"} {
		t.Run(sdk, func(t *testing.T) {
			t.Parallel()
			store, server := redistest.Start(t), startServer(t, "slowserver")
			w := startRolling(t, "taskgate", 2, func(admin string) string {
				return fmt.Sprintf(rolling, store.URL(), admin, server) + "drain_timeout: 40s\n"
			})
			var calls []map[string]any
			for i := range 6 {
				calls = append(calls, map[string]any{"name": "research", "arguments": research(1 + 4*float64(i))})
			}
			list, err := json.Marshal(calls)
			if err != nil {
				t.Fatal(err)
			}
			var restarts sync.WaitGroup
			defer restarts.Wait()
			restarts.Go(func() {
				for i := range w.backends {
					w.restartOne(t, i)
				}
			})
			var got struct{ Answers []string }
			runNodeInto(t, &got, "cuts.mjs", "SDK="+sdk, "URL="+startCutter(t, w.url)+"/mcp", "CALLS="+string(list))
			for i, answer := range got.Answers {
				if err := wantReport(answer); err != nil {
					t.Errorf("%v: %v", calls[i], err)
				}
			}
			if len(got.Answers) != len(calls) {
				t.Errorf("%d answers", len(got.Answers))
			}
		})
	}
}
