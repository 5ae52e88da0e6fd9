package e2e

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"taskgate/internal/redistest"
)

// cutting has each connection last for 8 s, whatever goes on on it: as a load balancer with a limit does.
type cutting struct{ net.Listener }

func (l cutting) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil {
		time.AfterFunc(8*time.Second, func() { _ = c.Close() })
	}
	return c, err
}

// startCutting serves until the test ends.
func startCutting(t *testing.T, h http.Handler) (url string) {
	t.Helper()
	web := httptest.NewUnstartedServer(h)
	web.Listener = cutting{web.Listener}
	web.Start()
	t.Cleanup(func() { _ = web.Config.Close() })
	return web.URL
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
					w.restartOne(t, i, time.Minute)
				}
			})
			var got struct{ Answers []string }
			runNodeInto(t, &got, "cuts.mjs", "SDK="+sdk, "URL="+startCutting(t, w.balancer)+"/mcp", "CALLS="+string(list))
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
