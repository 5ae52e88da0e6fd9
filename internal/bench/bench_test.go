package main

import (
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"taskgate/internal/mcp"
)

// start serves on loopback and returns the address.
func start(t *testing.T, h http.Handler) string {
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

// The client reads both forms of body that Go's server writes, and server and proxy answer what
// the benchmark looks for.
func TestHTTPClient(t *testing.T) {
	upstream := start(t, new(server))
	proxy := start(t, reverseProxy(upstream, new(buffers)))
	for _, addr := range []string{upstream, proxy} {
		for _, tool := range []string{"plain", toolEvent, toolEvents, toolLarge, toolLargeChunks, toolLargeEvent} {
			got, err := call(addr, tool, false, answered).measure(2, 20*time.Millisecond)
			if err != nil {
				t.Fatalf("%s: %v", tool, err)
			}
			if got.rate <= 0 || got.p50 <= 0 || got.p99 < got.p50 {
				t.Errorf("%s: sample %+v", tool, got)
			}
		}
	}
}

func TestWrongAnswersAreErrors(t *testing.T) {
	addr := start(t, new(server))
	refuses := start(t, http.NotFoundHandler())
	for name, l := range map[string]load{
		"content": call(addr, "plain", false, "something else"),
		"status":  call(refuses, "plain", false, ""),
		"refused": call("127.0.0.1:1", "plain", false, ""),
	} {
		if _, err := l.measure(1, time.Millisecond); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestServer(t *testing.T) {
	for method, want := range map[string]string{
		mcp.MethodInitialize: `"protocolVersion"`,
		mcp.MethodDiscover:   `"supportedVersions"`,
		mcp.MethodToolsList:  `"always"`,
		mcp.MethodToolsCall:  answered,
	} {
		w := httptest.NewRecorder()
		new(server).ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/mcp", strings.NewReader(`{"jsonrpc":"2.0","id":"a-1","method":"`+method+`"}`)))
		if body := w.Body.String(); !strings.Contains(body, want) || !strings.Contains(body, `"id":"a-1"`) {
			t.Errorf("%s: %s", method, body)
		}
	}
}

// The server releases its oldest call first, in either era, and says when.
func TestRelease(t *testing.T) {
	s := new(server)
	st := &stage{server: start(t, s)}
	st.proxy = start(t, reverseProxy(st.server, nil))
	var calls sync.WaitGroup
	ended := make(chan int, 3)
	for i, request := range [][]byte{
		call(st.server, toolHold, false, "").request,
		[]byte(strings.Replace(string(call(st.server, toolHold, false, "").request), mcp.HeaderProtocolVersion+": "+mcp.Version20260728, mcp.HeaderProtocolVersion+": "+mcp.Version20251125, 1)),
		call(st.proxy, toolHold, false, "").request,
	} {
		addr := []string{st.server, st.server, st.proxy}[i]
		calls.Go(func() {
			d, err := exchange(t.Context(), load{addr: addr, request: request}, func(c *httpConn) (time.Duration, error) {
				if _, err := c.Write(c.request); err != nil {
					return 0, err
				}
				return c.readRelease()
			})
			if err != nil || d < 0 {
				t.Errorf("call %d: %v, %v", i, d, err)
			}
			ended <- i
		})
		if err := st.waitHeld(t.Context(), i+1); err != nil {
			t.Fatal(err)
		}
	}
	s.release()
	if first := <-ended; first != 0 {
		t.Errorf("call %d was released first", first)
	}
	if _, err := st.held(t.Context(), "?every=1ms"); err != nil {
		t.Error(err)
	}
	calls.Wait()
}

// A waiter tells what is no result.
func TestReadReleaseFails(t *testing.T) {
	for _, bad := range []string{"HTTP/1.1 404 Not Found\r\n\r\nno session", "HTTP/1.1 200 OK\r\n\r\nnothing"} {
		client, server := net.Pipe()
		go func() { // ends with the response: the reader reads all of it, or closes
			_, _ = server.Write([]byte(bad))
			_ = server.Close()
		}()
		if d, err := newHTTPConn(client, nil).readRelease(); err == nil {
			t.Errorf("%q: %v", bad, d)
		}
		client.Close()
	}
}

func TestTables(t *testing.T) {
	if m := median([]sample{{rate: 300}, {rate: 100}, {rate: 200, p50: time.Millisecond}}); m.rate != 200 || m.p50 != 0 {
		t.Errorf("median %+v", m)
	}
	calls := callsTable([]row{{name: "plain", conns: []int{1}}}, map[cell]*found{{"plain", 1}: {gateway: []sample{{rate: 90}, {rate: 110}}, bare: []sample{{rate: 200}}, pooled: []sample{{rate: 400}}}})
	waiting, err := waitingTable(map[string][]time.Duration{waitProxy: {2 * time.Millisecond}, waitResult: {3 * time.Millisecond}, waitListen: {time.Millisecond}})
	if err != nil {
		t.Fatal(err)
	}
	parked := parkedTable([]level{{era: "legacy", parked: 7, length: time.Second, idle: usage{resident: 5 << 20, commands: 3}, plain: sample{rate: 1}, get: sample{rate: 3}, proxy: sample{rate: 2}}})
	made := func(rate float64) map[int][]sample {
		s := []sample{{rate: rate}}
		return map[int][]sample{1: s, 16: s, 64: s}
	}
	stores := storesTable([]*overStore{
		{kind: inFolder, plain: []sample{{rate: 9}}, made: made(3)}, {kind: inRedis, plain: []sample{{rate: 8}}, made: made(2)},
	}) + keptTable(kept{tasks: 10, files: 25, start: 5 * time.Millisecond, resident: 7 << 20, redis: 3 << 20})
	jobs := jobsTable([]following{{era: "modern", jobs: 9, length: 2 * time.Second, used: usage{resident: 5 << 20, cpu: time.Second, commands: 3}, polls: 4}})
	for want, table := range map[string]string{
		"| file | 16 | 3 | 0 µs | 0 µs | 0 µs | 1.50 | 9 |":                                 stores,
		"| modern | 9 | 5 MB | 50.0 % | 2.0 | 1.5 |":                                        jobs,
		"| 10 | 2 | 5.00 ms | 7 MB | 3 MB |":                                                stores,
		"| plain | 1 | 100 | 0 µs | 0 µs | 0 µs | 200 | 0 µs | 0 µs | 0 µs | 0.50 | 0.25 |": calls,
		"| tasks/result, 2025-11-25 | 1 | 3.00 ms | 3.00 ms | 3.00 ms | 1.5 |":              waiting,
		"| legacy | 7 | 5 MB | 0.0 % | 3.0 | 1 | 0.50 | 3 | 1.50 |":                         parked,
	} {
		if !strings.Contains(table, want) {
			t.Errorf("no %q in\n%s", want, table)
		}
	}
	if _, err := waitingTable(nil); err == nil {
		t.Error("no error where nobody heard anything")
	}
}

func TestUsage(t *testing.T) {
	if runtime.GOOS != "linux" {
		return
	}
	for name, read := range map[string]func() error{
		"CPU":    func() error { _, err := statOf(os.Getpid()); return err },
		"memory": func() error { _, err := residentOf(os.Getpid()); return err },
		"files":  func() error { return raiseFiles(0) },
	} {
		if err := read(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if raiseFiles(1<<40) == nil {
		t.Error("there are as many files as that")
	}
}

// The figures for 100,000 are of the difference between N and 2N, so that what a deployment costs without any is left
// out.
func TestScaleIsCalculated(t *testing.T) {
	at := func(n int) scaleLevel {
		return scaleLevel{
			n:    n,
			idle: scaleUse{took: 10 * time.Second, resident: int64(80<<20 + n*10<<10), redis: int64(6<<20 + n<<10), gateCPU: time.Duration(n) * time.Millisecond, commands: int64(500 + 10*n)},
			add:  scaleUse{gateCPU: 2 * time.Second, masterCPU: time.Second, commands: 17_000},
		}
	}
	got := scaleTables([]scaled{{name: "things", levels: []scaleLevel{at(0), at(1000), at(2000)}, lost: "all went on"}})
	for _, want := range []string{
		"| things | 0 | 80 MB | 0.0 % | 6 MB | 0.0 % | 50 | - |\n",
		"| things | 2000 | 99 MB | 20.0 % | 7 MB | 0.0 % | 2050 | 2000 µs, 1000 µs, 17.0 |\n",
		"| things | 10.0 kB, 1.00 kB | 977 MB | 1000 % | 98 MB | 0 % | 100000 |\n",
		"| 2000 things | ", "all went on |\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("%s lacks %s", got, want)
		}
	}
}
