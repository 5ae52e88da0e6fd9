package upstream

import (
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"taskgate/shim"
	"taskgate/shim/shimtest/fake"
)

const legacyInit = `{"protocolVersion":"2025-06-18","capabilities":{},"serverInfo":{"name":"x","version":"1"}}`

// The verdict on each kind of answer to server/discover (protocol.md 2.10).
func TestVerdict(t *testing.T) {
	discover := func(versions string) string {
		return `{"resultType":"complete","supportedVersions":[` + versions + `],"capabilities":{}}`
	}
	for _, c := range []struct {
		name   string
		answer fake.Behaviour
		era    string // "" for none
		kind   string // of the error, where there is no verdict
	}{
		{"result", fake.Result(discover(`"2026-07-28","2025-11-25"`)), "modern", ""},
		{"result on a stream", fake.Stream(`{"jsonrpc":"2.0","id":{id},"result":` + discover(`"2026-07-28"`) + `}`), "modern", ""},
		{"result of legacy versions", fake.Result(discover(`"2025-11-25"`)), "legacy", ""},
		{"result of unknown versions", fake.Result(discover(`"2031-01-01"`)), "", shim.KindProtocol},
		{"result of something else", fake.Result(`{"hello":1}`), "legacy", ""},
		{"-32601 in 200", fake.RPCError(200, -32601, "m", ""), "legacy", ""},
		{"-32601 in 404", fake.RPCError(404, -32601, "m", ""), "legacy", ""},
		{"-32601 in 500", fake.RPCError(500, -32601, "m", ""), "legacy", ""},
		{"-32602 in 400", fake.RPCError(400, -32602, "m", ""), "legacy", ""},
		{"-32000 in 400", fake.RPCError(400, -32000, "no session", ""), "legacy", ""},
		{"-32001 in 404", fake.RPCError(404, -32001, "Session not found", ""), "legacy", ""},
		{"-32004 without a list", fake.RPCError(400, -32004, "m", ""), "legacy", ""},
		{"-32022 of legacy versions", fake.RPCError(400, -32022, "m", `{"supported":["2025-11-25"]}`), "legacy", ""},
		{"-32022 of unknown versions", fake.RPCError(400, -32022, "m", `{"supported":["2031-01-01"]}`), "", shim.KindProtocol},
		{"-32020", fake.RPCError(400, -32020, "m", ""), "modern", ""},
		{"-32021", fake.RPCError(400, -32021, "m", ""), "modern", ""},
		{"empty 400", fake.Status(400, "", ""), "legacy", ""},
		{"foreign 404", fake.Status(404, "text/html", "<html>"), "legacy", ""},
		{"405", fake.Status(405, "", ""), "legacy", ""},
		{"202", fake.Status(202, "", ""), "legacy", ""},
		{"HTML", fake.HTML(), "legacy", ""},
		{"401", fake.Status(401, "", ""), "", shim.KindRefused},
		{"403", fake.RPCError(403, -32601, "m", ""), "", shim.KindRefused},
		{"429", fake.Status(429, "", ""), "", shim.KindOverloaded},
		{"500", fake.Status(500, "", ""), "", shim.KindProtocol},
		{"500 with an error", fake.RPCError(500, -32603, "m", ""), "", shim.KindProtocol},
		{"502", fake.Status(502, "", ""), "", shim.KindUnreachable},
		{"503", fake.Status(503, "", ""), "", shim.KindOverloaded},
		{"307", fake.Redirect("/x"), "", shim.KindProtocol},
		{"413", fake.Status(413, "", ""), "", shim.KindProtocol},
		{"421", fake.Status(421, "", ""), "", shim.KindProtocol},
		{"423", fake.Status(423, "text/plain", "moving"), "", shim.KindProtocol},
		{"499", fake.Status(499, "", ""), "", shim.KindProtocol},
		{"409", fake.Status(409, "", ""), "legacy", ""},
		{"422", fake.Status(422, "", ""), "legacy", ""},
		{"cut", func(x *fake.Exchange) { x.Cut() }, "", shim.KindClosed},
		{"silence", func(x *fake.Exchange) { x.Hang() }, "", shim.KindTimeout},
	} {
		bubbleOf(t, c.name, fake.Stateless, Config{StartTimeout: 5 * time.Second}, func(t *testing.T, s *fake.Server, h *ServerClient) {
			s.On("server/discover", c.answer)
			s.On("initialize", fake.Result(legacyInit))
			v, err := h.findEra(t.Context(), shim.Session{})
			if c.era != "" {
				if err != nil || v.era.String() != c.era {
					t.Fatalf("verdict %+v, %v, want %s", v, err, c.era)
				}
				return
			}
			var ue *shim.UpstreamError
			if !errors.As(err, &ue) || ue.Kind != c.kind {
				t.Fatalf("verdict %+v, error %v, want kind %s", v, err, c.kind)
			}
			s.On("server/discover", fake.Result(discover(`"2026-07-28"`)))
			if v, err := h.findEra(t.Context(), shim.Session{}); err != nil || v.era.String() != "modern" {
				t.Errorf("afterwards: %+v, %v: no verdict must have been kept", v, err)
			}
		})
	}
}

func TestDescribe(t *testing.T) {
	for mode, want := range map[fake.Mode][2]string{
		fake.Stateful: {"legacy", "2025-11-25"}, fake.Stateless: {"legacy", "2025-11-25"},
		fake.Modern: {"modern", "2026-07-28"},
	} {
		bubble(t, mode, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
			var wg sync.WaitGroup
			for range 5 {
				wg.Go(func() {
					d, err := h.Describe(t.Context(), shim.Session{Key: "a"})
					if err != nil || d.Era.String() != want[0] || d.Version != want[1] || d.Instructions != "be kind" {
						t.Errorf("%+v, %v", d, err)
						return
					}
					if !strings.Contains(string(d.Capabilities), "listChanged") || !strings.Contains(string(d.Info), "fake") || !json.Valid(d.Raw) {
						t.Errorf("%+v", d)
					}
				})
			}
			wg.Wait()
			if n := len(s.Seen("server/discover")); n != 1 {
				t.Errorf("%d probes, want 1", n)
			}
			if n := len(s.Seen("initialize")); n > 1 {
				t.Errorf("%d handshakes", n)
			}
		})
	}
}

func TestHandshakeFailures(t *testing.T) {
	for _, c := range []struct {
		name   string
		mode   fake.Mode
		answer fake.Behaviour
		kind   string
		says   string
	}{
		{"no endpoint", fake.Stateless, fake.Status(404, "", ""), shim.KindProtocol, "no MCP endpoint"},
		{"foreign version", fake.Stateless, fake.Result(`{"protocolVersion":"1999-01-01"}`), shim.KindProtocol, "1999-01-01"},
		{"modern version", fake.Stateless, fake.Result(`{"protocolVersion":"2026-07-28"}`), shim.KindProtocol, "2026-07-28"},
		{"no version", fake.Stateless, fake.Result(`{}`), shim.KindProtocol, "version"},
		{"error", fake.Stateless, fake.RPCError(200, -32603, "secret", ""), shim.KindProtocol, "-32603"},
		{"401", fake.Stateless, fake.Status(401, "", ""), shim.KindRefused, "credentials"},
		{"503", fake.Stateless, fake.Status(503, "", "", "Retry-After", "7"), shim.KindOverloaded, ""},
		{"cut", fake.Stateless, func(x *fake.Exchange) { x.Cut() }, shim.KindClosed, ""},
		{"silence", fake.Stateless, func(x *fake.Exchange) { x.Hang() }, shim.KindTimeout, ""},
	} {
		bubbleOf(t, c.name, c.mode, Config{StartTimeout: 5 * time.Second}, func(t *testing.T, s *fake.Server, h *ServerClient) {
			s.On("initialize", c.answer)
			_, err := h.Call(t.Context(), in("a", ``), nil)
			var ue *shim.UpstreamError
			if !errors.As(err, &ue) || ue.Kind != c.kind || !ue.Unsent || !strings.Contains(ue.Message, c.says) {
				t.Fatalf("error %v, want unsent %s that says %q", err, c.kind, c.says)
			}
			if strings.Contains(ue.Message, "secret") {
				t.Errorf("message %q tells too much", ue.Message)
			}
		})
	}
}

// A session of an older version does not name it.
func TestOlderVersions(t *testing.T) {
	for version, header := range map[string]string{"2025-06-18": "2025-06-18", "2025-03-26": "", "2024-11-05": "", "2024-10-07": ""} {
		bubble(t, fake.Stateless, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
			s.On("initialize", fake.Result(strings.Replace(legacyInit, "2025-06-18", version, 1)))
			s.Tool("t", fake.Text("ok"))
			mustCall(t, h, in("a", ``))
			if got := s.Seen("tools/call")[0].Header.Get("Mcp-Protocol-Version"); got != header {
				t.Errorf("%s: header %q, want %q", version, got, header)
			}
		})
	}
}

// A server that becomes another is recognised again, and the call that finds it
// out is not lost where the answer proves that it was not begun.
func TestServerChanges(t *testing.T) {
	for _, c := range []struct{ from, to fake.Mode }{
		{fake.Stateful, fake.Modern}, {fake.Stateless, fake.Modern},
		{fake.Stateful, fake.Stateless}, {fake.Stateless, fake.Stateful},
		{fake.Modern, fake.Stateful}, {fake.Modern, fake.Stateless},
	} {
		bubble(t, c.from, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
			s.Tool("t", fake.Text("ok"))
			mustCall(t, h, in("a", ``))
			s.Become(c.to)
			want := 2
			if r, err := h.Call(t.Context(), in("a", ``), nil); err == nil && r.Error == nil {
				want = 3 // else the first may fail, and no later one
			}
			mustCall(t, h, in("a", ``))
			if n := s.Runs("k"); n != want {
				t.Errorf("from %d to %d: tool ran %d times, want %d", c.from, c.to, n, want)
			}
		})
	}
}
