package upstream

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"taskgate/shim"
	"taskgate/shim/shimtest"
	"taskgate/shim/shimtest/fake"
)

// callTool sends a call of the tool "t" with the key "k".
func callTool(t testing.TB, h *ServerClient, s shim.Sink) (shim.Reply, error) {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	return h.Call(ctx, shimtest.Tool("t", "k"), s)
}

// quiet waits until no connection of the fake serves a request any more.
func quiet(t *testing.T, s *fake.Server) {
	t.Helper()
	shimtest.Eventually(t, func() bool { _, active := s.Conns(); return active == 0 })
}

// modes are the kinds of servers that can misbehave.
var modes = map[string]fake.Mode{"legacy": fake.Stateful, "stateless": fake.Stateless, "modern": fake.Modern}

const result = `{"jsonrpc":"2.0","id":{id},"result":{"resultType":"complete","content":[{"type":"text","text":"ok"}]}}`

// Whatever a server does with a call, the caller learns a kind, the tool ran at
// most once, and nothing is left behind.
func TestMisbehaviour(t *testing.T) {
	big := strings.Repeat("x", 5000)
	for _, c := range []struct {
		name string
		do   fake.Behaviour
		kind string // of the UpstreamError, "" for a reply
		code int64  // of the reply's error
		runs int
	}{
		{"ok", fake.Stream(result), "", 0, 1},
		{"ok JSON", fake.Text("ok"), "", 0, 1},
		{"HTML", fake.HTML(), shim.KindProtocol, 0, 1},
		{"no content type", fake.Body("", "{}"), shim.KindProtocol, 0, 1},
		{"empty JSON", fake.Body("application/json", ""), shim.KindProtocol, 0, 1},
		{"garbage JSON", fake.Body("application/json", "{]"), shim.KindProtocol, 0, 1},
		{"answer among others", func(x *fake.Exchange) {
			fake.Body("application/json", x.Fill(`[{"jsonrpc":"2.0","method":"notifications/x"},`+result+`]`))(x)
		}, "", 0, 1},
		{"array without an answer", fake.Body("application/json", `[{"jsonrpc":"2.0","method":"notifications/x"}]`), shim.KindProtocol, 0, 1},
		{"truncated JSON", fake.Truncated(), shim.KindClosed, 0, 1},
		{"oversized JSON", fake.Body("application/json", `"`+big+`"`), shim.KindTooLarge, 0, 1},
		{"wrong id JSON", fake.Body("application/json", `{"jsonrpc":"2.0","id":"other","result":{}}`), shim.KindProtocol, 0, 1},
		{"garbage id", fake.Body("application/json", `{"jsonrpc":"2.0","id":{},"result":{}}`), shim.KindProtocol, 0, 1},
		{"result no object", fake.Stream(`{"jsonrpc":"2.0","id":{id},"result":5}`), shim.KindProtocol, 0, 1},
		{"empty stream", fake.Stream(), shim.KindClosed, 0, 1},
		{"cut stream", func(x *fake.Exchange) { x.Run(); x.Comment(); x.Cut() }, shim.KindClosed, 0, 1},
		{"cut event", func(x *fake.Exchange) { x.Run(); x.Head("text/event-stream"); x.W.Write([]byte("data: {")) }, shim.KindClosed, 0, 1},
		{"cut before head", func(x *fake.Exchange) { x.Run(); x.Cut() }, shim.KindClosed, 0, 1},
		{"oversized event", fake.Stream(`{"jsonrpc":"2.0","method":"` + big + `"}`), shim.KindTooLarge, 0, 1},
		{"garbage event", fake.Stream("hello"), shim.KindClosed, 0, 1},
		{"garbage before the answer", fake.Stream("hello", `{"jsonrpc":"2.0","method":"notifications/message","params":{"data":NaN}}`, result), "", 0, 1},
		{"answer that is no JSON", fake.Stream(`{"jsonrpc":"2.0","id":{id},"result":{"value":NaN}}`, result), shim.KindProtocol, 0, 1},
		{"another answer that is no JSON", fake.Stream(`{"jsonrpc":"2.0","id":"other","result":{"value":NaN}}`, result), "", 0, 1},
		{"answer without a result", fake.Stream(`{"jsonrpc":"2.0","id":{id}}`, result), shim.KindProtocol, 0, 1},
		{"error that is no JSON", fake.Stream(`{"jsonrpc":"2.0","id":null,"error":{"code":NaN}}`, result), shim.KindProtocol, 0, 1},
		{"notification with an id", fake.Stream(`{"jsonrpc":"2.0","id":null,"method":"notifications/x"}`, result), "", 0, 1},
		{"foreign event", func(x *fake.Exchange) {
			x.Run()
			x.Head("text/event-stream")
			fmt.Fprint(x.W, "event: ping\ndata: now\n\n")
			x.Event(x.Fill(result))
		}, "", 0, 1},
		{"wrong id event", fake.Stream(strings.Replace(result, "{id}", `"other"`, 1)), shim.KindClosed, 0, 1},
		{"id as text", fake.Stream(`{"jsonrpc":"2.0","id":"{id}","result":{}}`), "", 0, 1},
		{"id with a fraction", fake.Stream(`{"jsonrpc":"2.0","id":{id}.0,"result":{}}`), "", 0, 1},
		{"result null beside an error", fake.Stream(`{"jsonrpc":"2.0","id":{id},"result":null,"error":{"code":7,"message":"no"}}`), "", 7, 1},
		{"result and error", fake.Stream(`{"jsonrpc":"2.0","id":{id},"result":{},"error":{"code":7,"message":"no"}}`), shim.KindProtocol, 0, 1},
		{"not UTF-8", fake.Stream(strings.Replace(result, "ok", "\xff", 1)), "", 0, 1},
		{"not UTF-8 in an error", fake.Stream("{\"jsonrpc\":\"2.0\",\"id\":{id},\"error\":{\"code\":7,\"message\":\"\xff\"}}"), "", 7, 1},
		{"not UTF-8 in an error in 400", fake.Status(400, "application/json", "{\"jsonrpc\":\"2.0\",\"error\":{\"code\":7,\"message\":\"\xff\"}}"), "", 7, 0},
		{"events ended by a lone CR", func(x *fake.Exchange) { // CR is a blank within JSON
			x.Run()
			x.Head("text/event-stream")
			fmt.Fprint(x.W, "data: "+x.Fill(result)+"\r\r")
		}, "", 0, 1},
		{"no blank line behind the last event", func(x *fake.Exchange) {
			x.Run()
			x.Head("text/event-stream")
			fmt.Fprint(x.W, "event: message\ndata: "+x.Fill(result))
		}, "", 0, 1},
		{"an end inside of the last event", func(x *fake.Exchange) {
			x.Run()
			x.Head("text/event-stream")
			fmt.Fprint(x.W, "data: "+strings.TrimSuffix(x.Fill(result), "}"))
		}, shim.KindClosed, 0, 1},
		{"two responses", fake.Stream(result, `{"jsonrpc":"2.0","id":{id},"error":{"code":1,"message":"second"}}`), "", 0, 1},
		{"endless after answer", func(x *fake.Exchange) { x.Run(); x.Event(x.Fill(result)); x.Hang() }, "", 0, 1},
		{"batch", fake.Stream(`[{"jsonrpc":"2.0","method":"notifications/x"},` + result + `]`), shim.KindClosed, 0, 1},
		{"error without id", fake.Stream(`{"jsonrpc":"2.0","error":{"code":-32000,"message":"no"}}`), "", -32000, 1},
		{"RPC error", fake.RPCError(200, -32602, "bad", `{"x":1}`), "", -32602, 0},
		{"RPC error behind a byte order mark in 400", fake.Status(400, "application/json", "\uFEFF"+`{"jsonrpc":"2.0","error":{"code":-32602.0,"message":"bad"}}`), "", -32602, 0},
		{"RPC error in 400", fake.RPCError(400, -32602, "bad", ""), "", -32602, 0},
		{"RPC error in 500", fake.RPCError(500, -32603, "bad", ""), "", -32603, 0},
		{"RPC error in 404", fake.RPCError(404, -32601, "no method", ""), "", -32601, 0},
		{"202", fake.Status(202, "", ""), shim.KindProtocol, 0, 0},
		{"204", fake.Status(204, "", ""), shim.KindProtocol, 0, 0},
		{"307", fake.Redirect("http://elsewhere.invalid/"), shim.KindProtocol, 0, 0},
		{"401", fake.Status(401, "text/plain", "secret-token is wrong"), shim.KindRefused, 0, 0},
		{"403", fake.RPCError(403, -32000, "no", ""), shim.KindRefused, 0, 0},
		{"405", fake.Status(405, "text/plain", "no"), shim.KindProtocol, 0, 0},
		{"429", fake.Status(429, "", "", "Retry-After", "7"), shim.KindOverloaded, 0, 0},
		{"500", fake.Status(500, "text/html", "oops"), shim.KindProtocol, 0, 0},
		{"502", fake.Status(502, "text/html", "oops"), shim.KindUnreachable, 0, 0},
		{"503", fake.Status(503, "", "", "Retry-After", "7"), shim.KindOverloaded, 0, 0},
		{"504", fake.Status(504, "text/html", "oops"), shim.KindUnreachable, 0, 0},
	} {
		for mode, m := range modes {
			t.Run(c.name+"/"+mode, func(t *testing.T) {
				s := fake.New(t, m)
				s.Tool("t", c.do)
				h := newTestClient(t, Config{URL: s.URL, MaxResult: 4 << 10, Headers: map[string][]string{"Authorization": {"Bearer secret-token"}}})
				r, err := callTool(t, h, nil)
				checkKind(t, r, err, c.kind, c.code)
				asked(t, s, "tools/call", 1)
				if n := s.Runs("k"); n != c.runs {
					t.Errorf("tool ran %d times, want %d", n, c.runs)
				}
				quiet(t, s)
			})
		}
	}
}

func checkKind(t *testing.T, r shim.Reply, err error, kind string, code int64) {
	t.Helper()
	if kind == "" {
		switch {
		case err != nil:
			t.Fatalf("error %v", err)
		case code == 0 && (r.Error != nil || r.Result == nil):
			t.Errorf("reply %+v, want a result", r)
		case code != 0 && (r.Error == nil || r.Error.Code != code):
			t.Errorf("reply %+v, want error %d", r, code)
		}
		return
	}
	var ue *shim.UpstreamError
	if !errors.As(err, &ue) || ue.Kind != kind {
		t.Fatalf("reply %+v, error %v, want kind %s", r, err, kind)
	}
	if ue.Unsent {
		t.Error("error says that the call was not sent")
	}
	if strings.Contains(ue.Message, "secret") || strings.Contains(ue.Message, "127.0.0.1") {
		t.Errorf("message %q tells too much", ue.Message)
	}
	if kind == shim.KindOverloaded && ue.RetryAfterMs != 7000 {
		t.Errorf("retry after %d ms, want 7000", ue.RetryAfterMs)
	}
}

// A server that is down was not reached, also where it died between the handshake and the call.
func TestDown(t *testing.T) {
	s := fake.New(t, fake.Modern)
	met := newTestClient(t, Config{URL: s.URL})
	must(t, errorOf(met.Describe(t.Context(), shim.Session{})))
	s.Close()
	unreachable := func(err error) bool {
		ue, ok := errors.AsType[*shim.UpstreamError](err)
		return ok && ue.Kind == shim.KindUnreachable && ue.Unsent
	}
	if _, err := callTool(t, met, nil); !unreachable(err) {
		t.Errorf("one that was there: %v, want unreachable and unsent", err)
	}
	for _, era := range []EraChoice{EraAuto, EraLegacy} {
		h := newTestClient(t, Config{URL: s.URL, Era: era})
		if _, err := callTool(t, h, nil); !unreachable(err) {
			t.Errorf("era %s: %v, want unreachable and unsent", era, err)
		}
		if _, err := h.Describe(t.Context(), shim.Session{}); !unreachable(err) {
			t.Errorf("Describe: %v", err)
		}
	}
}

// A key in the query of a URL reaches the server, and no error or log line.
func TestSecretInURL(t *testing.T) {
	const secret = "open-sesame"
	s := fake.New(t, fake.Modern)
	s.Tool("t", func(x *fake.Exchange) {
		if key := x.R.URL.Query().Get("key"); key != secret {
			t.Errorf("the server was sent the key %q", key)
		}
		fake.Text("ok")(x)
	})
	var log bytes.Buffer
	c := Config{URL: s.URL + "?key=" + secret, Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))}
	h := newTestClient(t, c)
	mustCall(t, h, in("a", ``))
	s.Close()
	_, called := callTool(t, h, nil)
	fresh := newTestClient(t, c)
	_, described := fresh.Describe(t.Context(), shim.Session{})
	_, _, listed := fresh.Tool(t.Context(), shim.Session{}, "t")
	c.URL = "http://[" + secret
	_, made := New(c)
	for what, err := range map[string]error{"Call": called, "Describe": described, "Tool": listed, "New": made} {
		if err == nil || strings.Contains(err.Error(), secret) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if strings.Contains(log.String(), secret) {
		t.Errorf("logged: %s", &log)
	}
}

// A result of 3 MB arrives byte for byte, numbers, order, escapes and all.
func TestBytesSurvive(t *testing.T) {
	payload := `{"b":9007199254740993,"a":1.0,"c":"\u003c<é","resultType":"complete","dup":1,"dup":2,"content":[],"pad":"` + strings.Repeat("ab ", 1<<20) + `"}`
	for mode, m := range map[string]fake.Mode{"legacy": fake.Stateful, "modern": fake.Modern} {
		for _, kind := range []string{"json", "sse"} {
			t.Run(mode+"/"+kind, func(t *testing.T) {
				s := fake.New(t, m)
				if s.Tool("t", fake.Result(payload)); kind == "sse" {
					s.Tool("t", fake.Stream(`{"jsonrpc":"2.0","id":{id},"result":`+payload+`}`))
				}
				h := newTestClient(t, Config{URL: s.URL})
				r, err := callTool(t, h, nil)
				must(t, err)
				if string(r.Result) != payload {
					t.Errorf("result of %d bytes differs from what was sent (%d bytes)", len(r.Result), len(payload))
				}
			})
		}
	}
}

// The codes of a modern server that are about the hop never reach a client.
func TestModernErrors(t *testing.T) {
	for _, c := range []struct {
		code, want int64
		data       string
		sent       int
	}{
		{-32020, -32603, `{"x":1}`, 2},
		{-32021, -32021, `{"requiredCapabilities":{"sampling":{}}}`, 1},
		{-32042, -32603, `{"x":1}`, 1},
		{-32602, -32602, `{"uri":"u"}`, 1},
	} {
		s := fake.New(t, fake.Modern)
		s.Tool("t", fake.RPCError(400, int(c.code), "m", c.data))
		h := newTestClient(t, Config{URL: s.URL})
		r, err := callTool(t, h, nil)
		if err != nil || r.Error == nil || r.Error.Code != c.want {
			t.Errorf("code %d: reply %+v (%v), want %d", c.code, r.Error, err, c.want)
			continue
		}
		data := string(r.Error.Data)
		if c.want == -32603 {
			data = strings.ReplaceAll(data, fmt.Sprintf(`{"original":{"code":%d,"message":"m","data":%s}}`, c.code, c.data), "wrapped")
			if data != "wrapped" {
				t.Errorf("code %d: data %s", c.code, data)
			}
		} else if data != c.data {
			t.Errorf("code %d: data %s", c.code, data)
		}
		if n := len(s.Seen("tools/call")); n != c.sent {
			t.Errorf("code %d: sent %d times, want %d", c.code, n, c.sent)
		}
	}
}

// The codes about headers and versions have a call sent again only where they are
// the body of a refusal. Anywhere else the tool may have run.
func TestProofIsARefusal(t *testing.T) {
	const listed = `{"supported":["2026-07-28","2027-01-01"]}`
	for _, c := range []struct {
		mode fake.Mode
		code int
		data string
		sent int // as the body of a refusal
	}{
		{fake.Modern, -32020, `{}`, 2},
		{fake.Modern, -32022, listed, 2},
		{fake.Modern, -32022, `{}`, 1},
		{fake.Modern, -32022, `{"supported":"all"}`, 1},
		{fake.Modern, -32004, listed, 2}, // as servers built on drafts spell it
		{fake.Stateful, -32020, `{}`, 2},
		{fake.Stateful, -32022, listed, 2},
		{fake.Stateful, -32022, `{}`, 1},
	} {
		answer := fmt.Sprintf(`{"jsonrpc":"2.0","id":{id},"error":{"code":%d,"message":"m","data":%s}}`, c.code, c.data)
		progress := `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":{token},"progress":1}}`
		for how, b := range map[string]struct {
			answer fake.Behaviour
			sent   int
		}{
			"400":    {fake.RPCError(400, c.code, "m", c.data), c.sent},
			"500":    {func(x *fake.Exchange) { x.Run(); fake.RPCError(500, c.code, "m", c.data)(x) }, 1},
			"200":    {func(x *fake.Exchange) { x.Run(); fake.RPCError(200, c.code, "m", c.data)(x) }, 1},
			"stream": {fake.Stream(progress, answer), 1},
		} {
			s := fake.New(t, c.mode)
			s.Tool("t", b.answer)
			r, err := callTool(t, newTestClient(t, Config{URL: s.URL}), nil)
			if err == nil && (r.Error == nil || c.mode != fake.Stateful && r.Error.Code != -32603) {
				t.Errorf("mode %d, %d in a %s: %+v", c.mode, c.code, how, r.Error)
			}
			ran := 1
			if how == "400" {
				ran = 0
			}
			if sent := len(s.Seen("tools/call")); sent != b.sent || s.Runs("k") != ran {
				t.Errorf("mode %d, %d %s in a %s: sent %d times, ran %d times; want %d and %d", c.mode, c.code, c.data, how, sent, s.Runs("k"), b.sent, ran)
			}
		}
	}
}

func TestModernResults(t *testing.T) {
	for _, c := range []struct {
		result, kind string
	}{
		{`{"content":[]}`, ""}, // servers of the draft say no resultType
		{`{"resultType":"task","taskId":"x"}`, shim.KindProtocol},
		{`{"resultType":"unheard"}`, shim.KindProtocol},
		{`{"resultType":7}`, shim.KindProtocol},
	} {
		bubble(t, fake.Modern, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) { // a task is asked after for minutes
			s.Tool("t", fake.Result(c.result))
			r, err := h.Call(t.Context(), shimtest.Tool("t", "k"), nil)
			checkKind(t, r, err, c.kind, 0)
		})
	}
	s := fake.New(t, fake.Modern)
	s.On("tools/list", fake.Result(`{"resultType":"input_required","requestState":"s"}`))
	r, err := newTestClient(t, Config{URL: s.URL}).Call(t.Context(), shim.Request{Method: "tools/list", Relay: true}, nil)
	checkKind(t, r, err, shim.KindProtocol, 0)
}
