package upstream

import (
	"encoding/json"
	"fmt"
	"sync"
	"testing"

	"taskgate/internal/mcp"
	"taskgate/shim"
	"taskgate/shim/shimtest/fake"
)

// serverKinds are the servers that differ in the eras that they speak.
var serverKinds = map[string]fake.Mode{"legacy": fake.Stateful, "modern": fake.Modern, "both": fake.Both, "both, unlisted": fake.BothUnlisted}

// clientOf is a request of the n-th client of an era.
func clientOf(era mcp.Era, n int) shim.Request {
	r := in(fmt.Sprint(era, n), `{}`)
	r.Session.Legacy = era == mcp.Legacy
	return r
}

// spokenTo wants the server to be described, listened to and called for a client in this era.
func spokenTo(t *testing.T, s *fake.Server, h *ServerClient, r shim.Request, want mcp.Era) {
	t.Helper()
	d, err := h.Describe(t.Context(), r.Session)
	if err != nil || d.Era != want {
		t.Errorf("it is described to %s as %v, want %v (%v)", r.Session.Key, d.Era, want, err)
	}
	if _, ok, err := h.Tool(t.Context(), r.Session, "t"); !ok || err != nil {
		t.Errorf("its tool is listed to %s: %t, %v", r.Session.Key, ok, err)
	}
	mustCall(t, h, r)
	calls := s.Seen(mcp.MethodToolsCall)
	got := mcp.EraOf(calls[len(calls)-1].Header.Get(mcp.HeaderProtocolVersion))
	if got != want {
		t.Errorf("%s calls in %v, want %v", r.Session.Key, got, want)
	}
}

// Each client is served in its own era where the server speaks that, and the operator wants
// it; and in the other one else. What the server speaks is found out once for all clients.
func TestEraFitsTheClient(t *testing.T) {
	type counts struct{ probes, handshakes int }
	type cell struct {
		client mcp.Era
		server string
		era    EraChoice
	}
	// Three calls of each of two clients. A legacy era takes a session of each client.
	both := map[cell]struct {
		era mcp.Era // NoEra: the client cannot be served
		counts
	}{
		{mcp.Modern, "legacy", EraAuto}:         {mcp.Legacy, counts{1, 2}},
		{mcp.Modern, "modern", EraAuto}:         {mcp.Modern, counts{1, 0}},
		{mcp.Modern, "both", EraAuto}:           {mcp.Modern, counts{1, 0}},
		{mcp.Modern, "both, unlisted", EraAuto}: {mcp.Modern, counts{1, 0}},
		{mcp.Legacy, "legacy", EraAuto}:         {mcp.Legacy, counts{0, 2}},
		{mcp.Legacy, "modern", EraAuto}:         {mcp.Modern, counts{1, 1}}, // one, which is refused
		{mcp.Legacy, "both", EraAuto}:           {mcp.Legacy, counts{0, 2}},
		{mcp.Legacy, "both, unlisted", EraAuto}: {mcp.Legacy, counts{0, 2}},

		{mcp.Modern, "legacy", EraLegacy}:         {mcp.Legacy, counts{0, 2}},
		{mcp.Modern, "both", EraLegacy}:           {mcp.Legacy, counts{0, 2}},
		{mcp.Modern, "both, unlisted", EraLegacy}: {mcp.Legacy, counts{0, 2}},
		{mcp.Legacy, "legacy", EraLegacy}:         {mcp.Legacy, counts{0, 2}},
		{mcp.Legacy, "both", EraLegacy}:           {mcp.Legacy, counts{0, 2}},
		{mcp.Legacy, "both, unlisted", EraLegacy}: {mcp.Legacy, counts{0, 2}},

		{mcp.Modern, "modern", EraModern}:         {mcp.Modern, counts{1, 0}},
		{mcp.Modern, "both", EraModern}:           {mcp.Modern, counts{1, 0}},
		{mcp.Modern, "both, unlisted", EraModern}: {mcp.Modern, counts{1, 0}},
		{mcp.Legacy, "modern", EraModern}:         {mcp.Modern, counts{1, 0}},
		{mcp.Legacy, "both", EraModern}:           {mcp.Modern, counts{1, 0}},
		{mcp.Legacy, "both, unlisted", EraModern}: {mcp.Modern, counts{1, 0}},
	}
	for _, client := range []mcp.Era{mcp.Legacy, mcp.Modern} {
		for server, mode := range serverKinds {
			for _, era := range []EraChoice{EraAuto, EraLegacy, EraModern} {
				bubbleOf(t, fmt.Sprintf("%v client, %s server, era %s", client, server, era), mode, Config{Era: era}, func(t *testing.T, s *fake.Server, h *ServerClient) {
					s.Tool("t", fake.Text("ok"))
					want := both[cell{client, server, era}]
					if want.era == mcp.NoEra {
						if _, err := h.Call(t.Context(), clientOf(client, 0), nil); err == nil || s.Runs("k") != 0 {
							t.Errorf("the call has the error %v, and ran %d times", err, s.Runs("k"))
						}
						if era == EraModern {
							asked(t, s, mcp.MethodInitialize, 0)
						}
						return
					}
					for range 3 {
						for n := range 2 {
							spokenTo(t, s, h, clientOf(client, n), want.era)
						}
					}
					if n := s.Runs("k"); n != 6 {
						t.Errorf("the tool ran %d times", n)
					}
					asked(t, s, mcp.MethodDiscover, want.probes)
					asked(t, s, mcp.MethodInitialize, want.handshakes)
				})
			}
		}
	}
}

// Clients of both eras at once, the first calls of all at the same moment: each is served in
// its own, and they share what is found out.
func TestErasSideBySide(t *testing.T) {
	for server, want := range map[string]struct {
		mode               fake.Mode
		legacy, modern     mcp.Era
		probes, handshakes int
	}{
		"legacy":         {fake.Stateful, mcp.Legacy, mcp.Legacy, 1, 10},
		"modern":         {fake.Modern, mcp.Modern, mcp.Modern, 1, 1},
		"both":           {fake.Both, mcp.Legacy, mcp.Modern, 1, 5},
		"both, unlisted": {fake.BothUnlisted, mcp.Legacy, mcp.Modern, 1, 5},
	} {
		bubbleOf(t, server, want.mode, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
			s.Tool("t", fake.Text("ok"))
			var wg sync.WaitGroup
			for n := range 5 {
				for _, era := range []mcp.Era{mcp.Legacy, mcp.Modern} {
					wg.Go(func() { mustCall(t, h, clientOf(era, n)) })
				}
			}
			wg.Wait()
			for n := range 5 {
				spokenTo(t, s, h, clientOf(mcp.Legacy, n), want.legacy)
				spokenTo(t, s, h, clientOf(mcp.Modern, n), want.modern)
			}
			if n := s.Runs("k"); n != 20 {
				t.Errorf("the tool ran %d times", n)
			}
			asked(t, s, mcp.MethodDiscover, want.probes)
			asked(t, s, mcp.MethodInitialize, want.handshakes)
		})
	}
}

// A server that is replaced by one of other eras is found out by the calls that meet it. They
// run at most once each, and the next ones are served as a new gateway would serve them, a
// while later at the latest.
func TestErasChange(t *testing.T) {
	eras := map[string][2]mcp.Era{ // what legacy and modern clients are served in
		"legacy": {mcp.Legacy, mcp.Legacy}, "modern": {mcp.Modern, mcp.Modern},
		"both": {mcp.Legacy, mcp.Modern}, "both, unlisted": {mcp.Legacy, mcp.Modern},
	}
	for from, before := range serverKinds {
		for to, after := range serverKinds {
			if from == to {
				continue
			}
			bubbleOf(t, from+" to "+to, before, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
				s.Tool("t", fake.Text("ok"))
				clients := []shim.Request{clientOf(mcp.Legacy, 0), clientOf(mcp.Modern, 0)}
				for i, r := range clients {
					spokenTo(t, s, h, r, eras[from][i])
				}
				s.Become(after)
				legacyIntroduces(s, "another")
				want := 2
				for range 2 {
					for _, r := range clients {
						reply, err := h.Call(t.Context(), r, nil)
						if err == nil && reply.Error == nil {
							want++
						}
					}
				}
				if n := s.Runs("k"); n != want || want < 4 {
					t.Errorf("the tool ran %d times for %d calls that succeeded", n, want)
				}
				pauseFor(t, aloneFor)
				for _, r := range clients { // which hear of the new server now
					_, _ = h.Describe(t.Context(), r.Session)
					mustCall(t, h, r)
				}
				for i, r := range clients {
					spokenTo(t, s, h, r, eras[to][i])
				}
			})
		}
	}
}

// A server that is in trouble when it is asked for a handshake is not taken for one that
// knows none.
func TestHandshakeInTrouble(t *testing.T) {
	for name, trouble := range map[string]fake.Behaviour{
		"503": fake.Status(503, "", ""), "502": fake.Status(502, "", ""), "401": fake.Status(401, "", ""),
		"cut": func(x *fake.Exchange) { x.Cut() },
	} {
		bubbleOf(t, name, fake.Both, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
			s.Tool("t", fake.Text("ok"))
			r := clientOf(mcp.Legacy, 0)
			s.On(mcp.MethodInitialize, trouble)
			if _, err := h.Call(t.Context(), r, nil); err == nil {
				t.Error("the call succeeded")
			}
			s.On(mcp.MethodInitialize, nil)
			spokenTo(t, s, h, r, mcp.Legacy)
			if n := s.Runs("k"); n != 1 {
				t.Errorf("the tool ran %d times", n)
			}
		})
	}
}

// However a modern server refuses a handshake, legacy clients are served across eras.
func TestHandshakeRefused(t *testing.T) {
	for name, refusal := range map[string]fake.Behaviour{
		"-32022": fake.RPCError(400, -32022, "no", `{"supported":["2026-07-28"]}`), "-32601": fake.RPCError(404, -32601, "no", ""),
		"400": fake.Status(400, "", ""), "404": fake.Status(404, "text/html", "<html>"), "405": fake.Status(405, "", ""),
		"422": fake.Status(422, "application/json", `{"detail":"no"}`), "500": fake.Status(500, "", ""),
		"modern version": fake.Result(`{"protocolVersion":"2026-07-28"}`), "nonsense": fake.HTML(),
	} {
		bubbleOf(t, name, fake.Both, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
			s.Tool("t", fake.Text("ok"))
			s.On(mcp.MethodInitialize, refusal)
			for n := range 3 {
				spokenTo(t, s, h, clientOf(mcp.Legacy, n), mcp.Modern)
			}
			asked(t, s, mcp.MethodInitialize, 1)
			asked(t, s, mcp.MethodDiscover, 1)
		})
	}
}

// A modern server that has refused a handshake is asked for another one after an hour.
func TestHandshakeIsTriedAgain(t *testing.T) {
	bubble(t, fake.BothUnlisted, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
		s.Tool("t", fake.Text("ok"))
		s.On(mcp.MethodInitialize, fake.RPCError(200, -32601, "no such method", ""))
		spokenTo(t, s, h, clientOf(mcp.Legacy, 0), mcp.Modern)
		s.On(mcp.MethodInitialize, nil)
		spokenTo(t, s, h, clientOf(mcp.Legacy, 1), mcp.Modern)
		asked(t, s, mcp.MethodInitialize, 1)
		pauseFor(t, aloneFor)
		spokenTo(t, s, h, clientOf(mcp.Legacy, 2), mcp.Legacy)
		asked(t, s, mcp.MethodInitialize, 2)
	})
}

// What a server says of itself, and its tools, are remembered for each era. That they differ
// does not mean that the server was replaced.
func TestErasAreRememberedApart(t *testing.T) {
	bubble(t, fake.Both, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
		introduces(s, "modern", "90000")
		s.On(mcp.MethodToolsList, func(x *fake.Exchange) {
			era := mcp.EraOf(x.R.Header.Get(mcp.HeaderProtocolVersion))
			fake.Result(fmt.Sprintf(`{"resultType":"complete","ttlMs":90000,"tools":[{"name":"in %v","inputSchema":{"type":"object"}}]}`, era))(x)
		})
		for range 3 {
			for era, says := range map[mcp.Era]string{mcp.Legacy: "be kind", mcp.Modern: "modern"} {
				r := clientOf(era, 0)
				d, err := h.Describe(t.Context(), r.Session)
				if err != nil || d.Era != era || d.Instructions != says {
					t.Errorf("%v: %+v, %v", era, d, err)
				}
				for _, listed := range []mcp.Era{mcp.Legacy, mcp.Modern} {
					_, ok, err := h.Tool(t.Context(), r.Session, "in "+listed.String())
					if err != nil || ok != (listed == era) {
						t.Errorf("%v: the tool in %v is listed: %t, %v", era, listed, ok, err)
					}
				}
			}
		}
		asked(t, s, mcp.MethodDiscover, 1)
		asked(t, s, mcp.MethodInitialize, 1)
		asked(t, s, mcp.MethodToolsList, 2)
	})
}

// A call that another replica runs again from its record is spoken in the era of its client.
func TestRecordKeepsTheEra(t *testing.T) {
	for _, era := range []mcp.Era{mcp.Legacy, mcp.Modern} {
		bubble(t, fake.Both, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
			s.Tool("t", fake.Text("ok"))
			record, err := json.Marshal(clientOf(era, 0))
			must(t, err)
			var r shim.Request
			must(t, json.Unmarshal(record, &r))
			spokenTo(t, s, h, r, era)
		})
	}
}
