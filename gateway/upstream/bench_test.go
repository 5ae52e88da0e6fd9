package upstream

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"taskgate/gateway/upstream/streamable"
	"taskgate/internal/jsonrpc"
	"taskgate/shim"
	"taskgate/shim/shimtest"
)

// null is a server that answers every request with the same little result, as
// JSON or as an event, and costs as little as net/http lets it.
func null(sse bool) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		method, _ := jsonrpc.GetString(body, "method")
		id, _ := jsonrpc.Get(body, "id")
		result := `{"resultType":"complete","content":[{"type":"text","text":"ok"}]}`
		switch method {
		case "server/discover":
			result = `{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{}}`
		case "initialize":
			result = `{"protocolVersion":"2025-11-25","capabilities":{},"serverInfo":{"name":"null","version":"1"}}`
			w.Header().Set("Mcp-Session-Id", "s")
		case "tools/list":
			result = `{"resultType":"complete","tools":[{"name":"t","inputSchema":{"type":"object"}}]}`
		}
		if len(id) == 0 {
			w.WriteHeader(http.StatusAccepted)
			return
		}
		if sse && method == "tools/call" {
			w.Header().Set("Content-Type", "text/event-stream")
			fmt.Fprintf(w, "data: {\"jsonrpc\":\"2.0\",\"id\":%s,\"result\":%s}\n\n", id, result)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":%s}`, id, result)
	})
}

// BenchmarkCall compares a call through the upstream client with a bare POST of the same
// body over the same kind of transport.
func BenchmarkCall(b *testing.B) {
	for _, sse := range []bool{false, true} {
		kind := map[bool]string{false: "json", true: "sse"}[sse]
		web := httptest.NewServer(null(sse))
		b.Cleanup(web.Close)
		b.Run(kind+"/post", func(b *testing.B) { benchPost(b, web.URL) })
		for _, era := range []EraChoice{EraLegacy, EraModern} {
			b.Run(kind+"/"+string(era), func(b *testing.B) { benchClient(b, web.URL, era) })
		}
	}
}

func benchPost(b *testing.B, url string) {
	client := &http.Client{Transport: streamable.New(streamable.Config{}).Base}
	defer client.CloseIdleConnections()
	body := jsonrpc.AppendRequest(nil, jsonrpc.StringID("r-1"), "tools/call", shimtest.Tool("t", "k").Params)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			req, _ := http.NewRequest(http.MethodPost, url, bytes.NewReader(body))
			req.Header.Set("Content-Type", "application/json")
			resp, err := client.Do(req)
			if err != nil {
				b.Error(err)
				return
			}
			if _, err := io.ReadAll(resp.Body); err != nil {
				b.Error(err)
			}
			resp.Body.Close()
		}
	})
}

func benchClient(b *testing.B, url string, era EraChoice) {
	h := newTestClient(b, Config{URL: url, Era: era})
	r := shimtest.Tool("t", "k")
	r.Session.Key = "a"
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if reply, err := h.Call(context.Background(), r, nil); err != nil || reply.Result == nil {
				b.Error(reply.Error, err)
				return
			}
		}
	})
}

// BenchmarkLargeResult reads a result of 20 MB.
func BenchmarkLargeResult(b *testing.B) {
	payload := `{"content":[{"type":"text","text":"` + strings.Repeat("a quick brown fox ", 20<<20/18) + `"}]}`
	for _, sse := range []bool{false, true} {
		web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			if method, _ := jsonrpc.GetString(body, "method"); method != "tools/call" {
				r.Body = io.NopCloser(bytes.NewReader(body))
				null(false).ServeHTTP(w, r)
				return
			}
			id, _ := jsonrpc.Get(body, "id")
			end := ""
			w.Header().Set("Content-Type", "application/json")
			if sse {
				w.Header().Set("Content-Type", "text/event-stream")
				_, _ = io.WriteString(w, "data: ")
				end = "\n\n"
			}
			fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":`, id)
			_, _ = io.WriteString(w, payload)
			_, _ = io.WriteString(w, "}"+end)
		}))
		b.Cleanup(web.Close)
		b.Run(map[bool]string{false: "json", true: "sse"}[sse], func(b *testing.B) {
			h := newTestClient(b, Config{URL: web.URL, Era: EraLegacy})
			r := shimtest.Tool("t", "k")
			r.Session.Key = "a"
			b.SetBytes(int64(len(payload)))
			b.ReportAllocs()
			for b.Loop() {
				if reply, err := h.Call(context.Background(), r, nil); err != nil || len(reply.Result) != len(payload) {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkParked measures what a call costs that waits for its answer on an
// open stream: memory and goroutines of this process, which includes the server.
func BenchmarkParked(b *testing.B) {
	const n = 2000
	var arrived atomic.Int64
	var release chan struct{}
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		method, _ := jsonrpc.GetString(body, "method")
		if method == "tools/call" {
			w.Header().Set("Content-Type", "text/event-stream")
			_ = http.NewResponseController(w).Flush()
			arrived.Add(1)
			<-release
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		null(true).ServeHTTP(w, r)
	}))
	b.Cleanup(web.Close)
	h := newTestClient(b, Config{URL: web.URL, Era: EraLegacy})
	for b.Loop() {
		release = make(chan struct{})
		arrived.Store(0)
		parked(b, h, n, &arrived, release)
	}
}

func parked(b *testing.B, h *ServerClient, n int, arrived *atomic.Int64, release chan struct{}) {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	had := runtime.NumGoroutine()
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			r := shimtest.Tool("t", "k")
			r.Session = shim.Session{Key: "a"}
			s := shimtest.Sink{}
			if _, err := h.Call(context.Background(), r, &s); err != nil {
				b.Error(err)
			}
		})
	}
	shimtest.Eventually(b, func() bool { return arrived.Load() == int64(n) })
	runtime.GC()
	runtime.ReadMemStats(&after)
	b.ReportMetric(float64(after.HeapInuse+after.StackInuse-before.HeapInuse-before.StackInuse)/float64(n), "B/call")
	b.ReportMetric(float64(runtime.NumGoroutine()-had)/float64(n), "goroutines/call")
	close(release)
	wg.Wait()
}
