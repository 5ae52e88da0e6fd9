package main

import (
	"bytes"
	"context"
	"io"
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

// The client reads both forms of body that Go's server writes, and the null
// upstream and the proxy answer what the benchmark looks for.
func TestHTTPClient(t *testing.T) {
	upstream := httptest.NewServer(http.HandlerFunc(nullUpstream))
	defer upstream.Close()
	proxy := httptest.NewServer(reverseProxy(upstream.Listener.Addr().String()))
	defer proxy.Close()
	chunked := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for range 3 {
			_, _ = w.Write([]byte(strings.Repeat("x", 3000)))
			_ = http.NewResponseController(w).Flush()
		}
		_, _ = w.Write([]byte(answered))
	}))
	defer chunked.Close()
	for _, addr := range []string{upstream.Listener.Addr().String(), proxy.Listener.Addr().String(), chunked.Listener.Addr().String()} {
		v := call("test", addr, "plain", false, answered)
		got, err := load(t.Context(), v, 2, 20*time.Millisecond)
		if err != nil {
			t.Fatal(err)
		}
		if got.rate <= 0 || got.p50 <= 0 || got.p99 < got.p50 {
			t.Errorf("sample %+v", got)
		}
	}
}

func TestWrongAnswersAreErrors(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(nullUpstream))
	defer server.Close()
	addr := server.Listener.Addr().String()
	for name, v := range map[string]variant{
		"content": call("content", addr, "plain", false, "something else"),
		"status":  over("status", addr, "", request(addr, "no/method", "x", `"name":"x"`, false)),
		"refused": call("refused", "127.0.0.1:1", "plain", false, ""),
	} {
		if _, err := load(t.Context(), v, 1, time.Millisecond); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestNullUpstream(t *testing.T) {
	for method, want := range map[string]string{
		mcp.MethodDiscover:  `"supportedVersions"`,
		mcp.MethodToolsList: `"always"`,
		mcp.MethodToolsCall: answered,
		"no/method":         "-32601",
	} {
		w := httptest.NewRecorder()
		nullUpstream(w, httptest.NewRequest(http.MethodPost, "/mcp", strings.NewReader(`{"jsonrpc":"2.0","id":"a-1","method":"`+method+`"}`)))
		if body := w.Body.String(); !strings.Contains(body, want) || !strings.Contains(body, `"id":"a-1"`) {
			t.Errorf("%s: %s", method, body)
		}
	}
}

func TestMedianAndReport(t *testing.T) {
	found := results{
		{direct, 1}:       {{rate: 300}, {rate: 100}, {rate: 200, p50: time.Millisecond}},
		{gatewayPlain, 1}: {{rate: 90}, {rate: 110}},
	}
	if m := median(found[cell{direct, 1}]); m.rate != 200 || m.p50 != 0 {
		t.Errorf("median %+v", m)
	}
	var out bytes.Buffer
	if err := report(&out, found, settings{rounds: 3, conns: []int{1}}, []string{"a machine"}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"| 1 | direct | 200 | 0 µs |", "| 1 | taskgate, tasks: never | 100 | 0 µs | 0 µs | 0.50 |", "- a machine"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
}

func TestSettingsFromEnv(t *testing.T) {
	t.Setenv("BENCH_ROUNDS", "3")
	t.Setenv("BENCH_SECONDS", "0.5")
	if s, err := settingsFromEnv(); err != nil || s.rounds != 3 || s.length != 500*time.Millisecond {
		t.Errorf("%+v, %v", s, err)
	}
	t.Setenv("BENCH_ROUNDS", "no")
	if _, err := settingsFromEnv(); err == nil {
		t.Error("no error")
	}
}

// Calls of either era stay open until they are cancelled or their client leaves.
func TestHolder(t *testing.T) {
	h := newHolder()
	server := httptest.NewServer(h)
	defer server.Close()
	p := &parking{stage: stage{upstream: server.Listener.Addr().String()}}
	post := func(ctx context.Context, version, body string) {
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, server.URL, strings.NewReader(body))
		if err != nil {
			t.Error(err)
			return
		}
		r.Header.Set(mcp.HeaderProtocolVersion, version)
		if resp, err := http.DefaultClient.Do(r); err == nil {
			_, _ = io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
		}
	}
	hold := func(ctx context.Context, id, version string) {
		post(ctx, version, `{"jsonrpc":"2.0","id":"`+id+`","method":"tools/call","params":{"name":"hold"}}`)
	}
	ctx, leave := context.WithCancel(t.Context())
	var calls sync.WaitGroup
	calls.Go(func() { hold(t.Context(), "a", mcp.Version20251125) })
	calls.Go(func() { hold(ctx, "b", mcp.Version20260728) })
	for _, step := range []struct {
		do   func()
		want int
	}{
		{func() {}, 2},
		{func() {
			post(t.Context(), mcp.Version20251125, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"a"}}`)
		}, 1},
		{leave, 0},
	} {
		step.do()
		if err := p.open(t.Context(), step.want); err != nil {
			t.Error(err)
		}
	}
	calls.Wait()
}

func TestUsage(t *testing.T) {
	before := usage{cpu: time.Second, commands: map[string]int64{"get": 3, "set": 1}}
	after := usage{cpu: 3 * time.Second, resident: 5, commands: map[string]int64{"get": 3, "set": 2, "hget": 4}}
	got := after.since(before)
	if got.cpu != 2*time.Second || got.resident != 5 || got.list() != "hget 4, set 1" {
		t.Errorf("%+v, %s", got, got.list())
	}
	if runtime.GOOS != "linux" {
		return
	}
	if _, err := cpuOf(os.Getpid()); err != nil {
		t.Error(err)
	}
}
