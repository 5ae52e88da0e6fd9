package main

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"taskgate/gateway/config"
	"taskgate/gateway/operator"
	"taskgate/internal/mcp"
	"taskgate/internal/wiretest"
)

// leave sends a request, and ends its connection once the server has the call.
func (w *limitWorld) leave(body string) {
	w.t.Helper()
	ctx, leave := context.WithCancel(w.t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if resp, err := w.do(ctx, http.DefaultTransport, body); err == nil {
			resp.Body.Close()
		}
	}()
	w.runs++
	w.gateway.until("the call reaches the server", func() bool { return w.server.Runs("hang") >= w.runs })
	leave()
	<-done
}

// logs waits for a line with all these words.
func (w *limitWorld) logs(words ...string) (line string) {
	w.t.Helper()
	w.gateway.until(fmt.Sprintf("logged: %q", words), func() bool {
		for line = range strings.Lines(w.gateway.log.String()) {
			all := true
			for _, word := range words {
				all = all && strings.Contains(line, word)
			}
			if all {
				return true
			}
		}
		return false
	})
	return line
}

const leavingClient = `"io.modelcontextprotocol/clientInfo":{"name":"codex-mcp-client\u001b[2J","version":"0.9"},"io.modelcontextprotocol/clientCapabilities":{}`

// TestClientThatLeaves: the log has one line for a client of each era that leaves a call which still runs. It says who it
// was, what happens to the call, and what would help.
func TestClientThatLeaves(t *testing.T) {
	hangsAs := func(params string) string {
		return `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"hang","arguments":{"key":"hang"},"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28",` + params + `}}}`
	}
	w := newLimitWorld(t, limit{set: func(_ *config.Config, u *config.Upstream) { u.WithoutTasks = config.WithoutTasksBlock }})
	w.leave(hangsAs(leavingClient))
	line := w.logs("a client has left a call that still runs", "level=INFO", `client="codex-mcp-client [2J 0.9"`, "era=modern", "tool=hang", "after=",
		`now="it is cancelled at the server"`, "waits=4m0s", `helps="a client that takes tasks, or without_tasks: handle"`)
	if strings.Contains(line, "\x1b") || strings.Contains(line, `\x1b`) {
		t.Errorf("the line has the client's control characters: %q", line)
	}

	w.leave(strings.Replace(hangsAs(leavingClient), "codex-mcp-client\\u001b[2J", "someone", 1))
	w.logs(`client="someone 0.9"`, `helps="a client that takes tasks, or a progress token, or without_tasks: handle"`)
}

// TestClientOf2025ThatLeaves: a lost connection is no cancellation, so the call goes on; a client that cancels ends it.
func TestClientOf2025ThatLeaves(t *testing.T) {
	w := newLimitWorld(t, limit{set: func(c *config.Config, _ *config.Upstream) { c.ResumeAfter = 1 << 40 }})
	w.begin(wiretest.InitializeBody)
	call := `{"jsonrpc":"2.0","id":"%s","method":"tools/call","params":{"name":"hang","arguments":{"key":"hang"}}}`
	post := func(ctx context.Context, body string) {
		h := http.Header{"Content-Type": {mcp.TypeJSON}, "Accept": {mcp.TypeAccept}, mcp.HeaderSession: {w.session}, mcp.HeaderProtocolVersion: {"2025-11-25"}}
		if resp, err := http.DefaultTransport.RoundTrip(wiretest.ClientRequest(ctx, "http://"+w.gateway.s.listener.Addr().String()+"/mcp", h, []byte(body))); err == nil {
			resp.Body.Close()
		}
	}
	ctx, leave := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); post(ctx, fmt.Sprintf(call, "lost")) }()
	w.gateway.until("the call reaches the server", func() bool { return w.server.Runs("hang") >= 1 })
	leave()
	<-done
	w.logs("a client has left a call that still runs", `client="c 2"`, "era=legacy", "tool=hang", `now="it goes on, and its answer reaches nobody"`)

	ctx, leave = context.WithCancel(t.Context())
	defer leave()
	done = make(chan struct{})
	go func() { defer close(done); post(ctx, fmt.Sprintf(call, "cancelled")) }()
	w.gateway.until("the call reaches the server", func() bool { return w.server.Runs("hang") >= 2 })
	post(t.Context(), `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"cancelled","reason":"timeout"}}`)
	<-done
	w.logs("a client has left a call that still runs", `now="it is cancelled at the server"`)
	post(t.Context(), `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"lost"}}`)
}

// TestRefusalsAreLogged: what is refused is a line for each reason and address, at once and then once a minute.
func TestRefusalsAreLogged(t *testing.T) {
	r := runServer(t, "http://127.0.0.1:1/mcp", nil)
	for range 20 {
		r.request("/nowhere", "", discovers)
		r.request("/mcp", "", "{}", "Content-Type", "text/plain")
	}
	refused := func(words string) {
		r.until("logged: "+words, func() bool { return strings.Contains(r.log.String(), words) })
	}
	refused(`msg="requests are refused" http.response.status_code=404 reason="not found" client.address=127.0.0.1 times=1 url.path=/nowhere`)
	refused(`msg="requests are refused" http.response.status_code=415 reason="Content-Type must be application/json" client.address=127.0.0.1 times=1 url.path=/mcp`)
	r.ends()
	if got := strings.Count(r.log.String(), "requests are refused"); got != 2 {
		t.Errorf("%d lines about refusals, want 2:\n%s", got, r.log)
	}
}

// TestAccessLog: with log.access each request is a line in the words of OpenTelemetry, at most 100 in ten seconds.
func TestAccessLog(t *testing.T) {
	r := runServer(t, "http://127.0.0.1:1/mcp", func(c *config.Config) { c.Log.Access = config.On })
	for range 150 {
		r.request("/mcp?key=secret", "", "{}", "User-Agent", "probe\u202e/1")
	}
	r.ends()
	log := r.log.String()
	if got := strings.Count(log, "msg=access "); got != 100 {
		t.Errorf("%d lines, want 100", got)
	}
	for _, want := range []string{
		"http.request.method=POST url.path=/mcp http.response.status_code=400 http.server.request.duration=", "client.address=127.0.0.1 client.port=",
		"network.protocol.version=1.1", `user_agent.original="probe /1"`, `msg="lines were left out of the log" line=access lines=50`,
	} {
		if !strings.Contains(log, want) {
			t.Errorf("%q is missing in\n%.3000s", want, log)
		}
	}
	if strings.Contains(log, "secret") {
		t.Error("the query is logged")
	}
}

// TestDeadServerIsOneLine: calls to a server that is down are one warning, and not one each.
func TestDeadServerIsOneLine(t *testing.T) {
	r := runServer(t, "http://127.0.0.1:1/mcp", nil)
	for range 20 {
		if status, body := r.post("tools/call", "work"); status != http.StatusOK || !strings.Contains(body, "-32603") {
			t.Fatalf("%d: %s", status, body)
		}
	}
	r.until("calls of a server that was never reached are counted", func() bool {
		errors := 0
		for _, m := range tell[operator.Stats](r, "/stats").Minutes {
			errors += m.Calls["error"]
		}
		return errors == 20
	})
	if got := strings.Count(r.log.String(), "level=WARN msg=\"request failed\" upstream=mcp times=1"); got != 1 {
		t.Errorf("%d warnings:\n%s", got, r.log)
	}
	if got := strings.Count(r.log.String(), "level=WARN"); got > 2 { // one is about the store in memory
		t.Errorf("%d warnings in all:\n%s", got, r.log)
	}
}
