package legacy_test

import (
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"taskgate/gateway"
	"taskgate/gateway/legacy"
	"taskgate/gateway/upstream"
	"taskgate/internal/mcp"
	"taskgate/internal/wiretest"
	"taskgate/shim/shimtest/fake"
)

// plainCall is a call of a client that may name no session.
const plainCall = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"t"}}`

// TestPassingSessionsOfKeys: requests that name no session share one with the server if one caller makes them, and with
// nobody else, as modern requests do.
func TestPassingSessionsOfKeys(t *testing.T) {
	server := fake.New(t, fake.Stateful)
	server.Tool("t", fake.Text("ok"))
	gate := startReplica(t, "a", newConfig(wiretest.WithKeys), parts{server: upstream.Config{URL: server.URL, Shared: true}})
	of := map[string]string{} // the key, by the server's session
	for range 2 {
		for _, key := range []string{wiretest.AliceKey, wiretest.BobKey} {
			if status, body := newRawClient(t, gate.url).as(key).post(plainCall); status != http.StatusOK || !strings.Contains(body, `"ok"`) {
				t.Fatalf("call: %d %s", status, body)
			}
			asked{caps: `{}`, method: mcp.MethodToolsCall, params: `{"name":"t"}`, key: key}.send(t, gate.url, "")
			seen := server.Seen(mcp.MethodToolsCall)
			for _, call := range seen[len(seen)-2:] {
				id := call.Header.Get(mcp.HeaderSession)
				if was := of[id]; was != "" && was != key {
					t.Errorf("%s and %s share a session with the server", was, key)
				}
				of[id] = key
			}
		}
	}
	if len(of) > 4 {
		t.Errorf("two callers have %d sessions with the server", len(of))
	}
}

// TestPassingSessionsNeedNoStore: nobody learns the id of a session that is of one request only, so the store has nothing
// of it, also where the answer takes long.
func TestPassingSessionsNeedNoStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := legacy.NewBrokenSessions(t, true)
		s := newLegacyServer(t, upstreamScript{Era: "legacy", Raw: []byte(`{"capabilities":{"tools":{}}}`),
			Replies: map[string]scriptReply{"tools/call": {After: "1m", Result: []byte(`{"content":[]}`)}}}, nil, func(o *gateway.Options) {
			o.Sessions, o.Config.ResumeAfter = store, time.Second
		})
		c := &taskClient{t: t}
		call := c.begin(s, plainCall, mcp.HeaderProtocolVersion, mcp.Version20251125)
		wiretest.Wait(time.Minute)
		if said := call.said(); len(said) != 1 || !strings.Contains(string(said[0]), `"content":[]`) || call.lastID() != "" {
			t.Errorf("%d %s, to be resumed from %q", call.w.status, said, call.lastID())
		}
		wantServed(t, serve(t, s.Handler(), t.Context(), "POST", "", wiretest.InitializeBody), http.StatusServiceUnavailable)
		if n := tableOf(s.Gateway).Count(); n != 0 {
			t.Errorf("%d sessions are left", n)
		}
	})
}

// TestPassingClientLeaves: a client that names no session, also by a header without a value, cancels its call by leaving,
// as a modern one does.
func TestPassingClientLeaves(t *testing.T) {
	stack := newLegacyStack(t, false, nil)
	defer close(stack.session.proceed)
	c := newRawClient(t, stack.url)
	leave := c.beginPost(strings.Replace(plainCall, `"t"`, `"wait"`, 1), mcp.HeaderSession, "")
	wiretest.Await(t, stack.session.started, "the tool")
	leave()
	wiretest.Await(t, stack.session.cancelled, "the cancellation upstream")
}
