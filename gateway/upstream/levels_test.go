package upstream

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/internal/work"
	"taskgate/shim/shimtest/fake"
)

func TestLogLevel(t *testing.T) {
	bubble(t, fake.Stateful, Config{}, func(t *testing.T, s *fake.Server, h *HTTP) {
		s.Tool("t", fake.Text("ok"))
		for _, level := range []string{"", "error", "error", "info", "warning", "nonsense"} {
			r := in("a", ``)
			r.LogLevel = level
			mustCall(t, h, r)
		}
		var got []string
		for _, x := range s.Seen("logging/setLevel") {
			got = append(got, string(x.Params))
		}
		if want := `{"level":"error"},{"level":"info"}`; strings.Join(got, ",") != want {
			t.Errorf("levels %v, want %s", got, want)
		}
	})
}

// levelsAsked are the log levels that the server was told.
func levelsAsked(s *fake.Server) string {
	var got []string
	for _, x := range s.Seen("logging/setLevel") {
		level, _ := jsonrpc.GetString(x.Params, "level")
		got = append(got, level)
	}
	return strings.Join(got, " ")
}

// The next call tells the server the level that it did not take from the one before. A
// server that knows no levels is told once.
func TestLogLevelAgain(t *testing.T) {
	for _, c := range []struct {
		name   string
		answer fake.Behaviour
		asked  string
	}{
		{"broken", fake.Status(500, "", ""), "info info"},
		{"error", fake.RPCError(200, -32603, "not now", ""), "info info"},
		{"no such method", fake.RPCError(200, -32601, "what?", ""), "info"},
		{"no such method, by status", fake.RPCError(404, -32601, "what?", ""), "info"},
	} {
		bubble(t, fake.Stateful, Config{}, func(t *testing.T, s *fake.Server, h *HTTP) {
			s.Tool("t", fake.Text("ok"))
			s.On("logging/setLevel", c.answer)
			r := in("a", ``)
			r.LogLevel = "info"
			mustCall(t, h, r)
			s.On("logging/setLevel", nil)
			mustCall(t, h, r)
			mustCall(t, h, r)
			if got := levelsAsked(s); got != c.asked {
				t.Errorf("%s: the server was told %q, want %q", c.name, got, c.asked)
			}
		})
	}
}

// A call that leaves does not take along the level that others wait for, too; and a call
// that wants more than the one under way has it told next.
func TestLogLevelOfACallThatLeaves(t *testing.T) {
	bubble(t, fake.Stateful, Config{}, func(t *testing.T, s *fake.Server, h *HTTP) {
		s.Tool("t", fake.Text("ok"))
		mustCall(t, h, in("a", ``))
		taken := 0
		s.On("logging/setLevel", func(x *fake.Exchange) {
			if work.Pause(x.R.Context(), time.Second) == nil {
				taken++
				fake.Result(`{}`)(x)
			}
		})
		call := func(ctx context.Context, level string) <-chan error {
			r := in("a", ``)
			r.LogLevel = level
			done := make(chan error, 1)
			go func() { _, err := h.Call(ctx, r, nil); done <- err }()
			synctest.Wait()
			return done
		}
		ctx, leave := context.WithCancel(t.Context())
		first := call(ctx, "error")
		second, third := call(t.Context(), "error"), call(t.Context(), "info")
		leave()
		if err := <-first; !errors.Is(err, context.Canceled) {
			t.Errorf("error %v", err)
		}
		for _, done := range []<-chan error{second, third} {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		if got := levelsAsked(s); got != "error info" || taken != 2 {
			t.Errorf("the server was told %q, and heard %d to the end", got, taken)
		}
	})
}

// What a client sets is what the server has from then on: a call that needs more says so.
func TestLogLevelSetByTheClient(t *testing.T) {
	bubble(t, fake.Stateful, Config{}, func(t *testing.T, s *fake.Server, h *HTTP) {
		s.Tool("t", fake.Text("ok"))
		r := in("a", ``)
		r.LogLevel = "info"
		mustCall(t, h, r)
		set := in("a", ``)
		set.Method, set.Name, set.Params = mcp.MethodSetLevel, "", json.RawMessage(`{"level":"error"}`)
		mustCall(t, h, set)
		mustCall(t, h, r)
		if got := levelsAsked(s); got != "info error info" {
			t.Errorf("the server was told %q", got)
		}
	})
}

// A server that does not answer holds up one call a minute, and not all of them.
func TestLogLevelUnanswered(t *testing.T) {
	bubble(t, fake.Stateful, Config{}, func(t *testing.T, s *fake.Server, h *HTTP) {
		s.Tool("t", fake.Text("ok"))
		s.On("logging/setLevel", func(x *fake.Exchange) { x.Hang() })
		r := in("a", ``)
		r.LogLevel = "info"
		begin := time.Now()
		for range 3 {
			mustCall(t, h, r)
		}
		if took := time.Since(begin); took != h.wire.cfg.ProbeTimeout {
			t.Errorf("three calls took %v", took)
		}
		pauseFor(t, levelPause)
		s.On("logging/setLevel", nil)
		mustCall(t, h, r)
		mustCall(t, h, r)
		if got := levelsAsked(s); got != "info info" {
			t.Errorf("the server was told %q", got)
		}
	})
}
