package legacy_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"taskgate/gateway/config"
	"taskgate/internal/mcp"
	"taskgate/internal/wiretest"
)

// addTool has the server say that its tools have changed.
func (r *legacyReplicas) addTool(name string) {
	addTool(r.server, name, func(context.Context, *sdk.CallToolRequest) (string, error) { return "", nil })
}

// snapshot returns what has Redis come back with a session as it is now.
func (r *legacyReplicas) snapshot(session string) (goBack func()) {
	older := map[string]any{}
	for _, key := range r.store.Keys("*" + session) {
		older[key] = r.store.Do("dump", key)
	}
	return func() {
		for _, key := range r.store.Keys("*" + session) {
			r.store.Do("del", key)
		}
		for key, was := range older {
			r.store.Do("restore", key, 0, was, "replace")
		}
	}
}

// awaitText waits for an event that says this.
func (s *sseClient) awaitText(what string) (id string) {
	s.t.Helper()
	id, _ = s.until(what, func(data string) bool { return strings.Contains(data, what) })
	return id
}

// awaitListening waits until a replica listens to the server for a session.
func (r *legacyReplicas) awaitListening(t *testing.T, i int, id string, on bool) {
	t.Helper()
	waitUntil(t, "listening upstream", func() bool {
		return tableOf(r.gates[i]).Listens(id) == on
	})
}

// TestReplicasStanding: a session has one GET stream. Where it is the server is
// listened to, and it can be opened elsewhere once it is closed.
func TestReplicasStanding(t *testing.T) {
	stack := newLegacyReplicas(t, func(c *config.Config) { c.KeepAlive = 100 * time.Millisecond })
	a, b := stack.beginBoth(t, "")
	first := openSSE(t, a, http.MethodGet, "", "")
	stack.awaitListening(t, 0, a.session, true)
	stack.addTool("one")
	if id := first.awaitText("tools/list_changed"); id != "" {
		t.Errorf("a young stream has the id %s", id)
	}
	second := openSSE(t, b, http.MethodGet, "", "")
	second.wantStatus(http.StatusConflict)
	second.close()
	// A subscription made elsewhere is heard here.
	b.wantPost(`{"jsonrpc":"2.0","id":1,"method":"resources/subscribe","params":{"uri":"test://a"}}`, http.StatusOK, `"result"`)
	waitUntil(t, "the first replica listens for it", func() bool {
		return len(tableOf(stack.gates[0]).Agreed(a.session).Resources) == 1
	})
	wiretest.Check(t, stack.server.ResourceUpdated(t.Context(), &sdk.ResourceUpdatedNotificationParams{URI: "test://a"}))
	first.awaitText("test://a")
	first.close()
	second = b.takeStream()
	stack.awaitListening(t, 0, a.session, false)
	waitUntil(t, "the second replica listens", func() bool {
		return len(tableOf(stack.gates[1]).Agreed(a.session).Resources) == 1
	})
	stack.addTool("two")
	second.awaitText("tools/list_changed")
}

// TestReplicasStandingResume: a client that comes back with the id of the last event it
// has seen gets what came after it, at the other replica too, though the first has not
// noticed that it is gone, and hears nothing of it twice.
func TestReplicasStandingResume(t *testing.T) {
	stack, a, b := newPair(t, resumeSoon, "")
	first := openSSE(t, a, http.MethodGet, "", "")
	primed, data, ok := first.event()
	if !ok || primed == "" || data != "" {
		t.Fatalf("no event to resume from: %q %s", primed, data)
	}
	stack.awaitListening(t, 0, a.session, true)
	stack.addTool("one")
	seen := first.awaitText("tools/list_changed")
	stack.server.AddPrompt(&sdk.Prompt{Name: "new"}, nil)
	last := first.awaitText("prompts/list_changed")
	second := openSSE(t, b, http.MethodGet, "", seen) // it has not seen the last one
	if got := second.awaitText("prompts/list_changed"); got != last {
		t.Errorf("replayed as %s, sent as %s", got, last)
	}
	first.rest()
	stack.awaitListening(t, 0, a.session, false)
	stack.awaitListening(t, 1, a.session, true)
	third := openSSE(t, b, http.MethodGet, "", last) // back, at the same replica
	if third.resp.StatusCode != http.StatusOK {
		t.Fatalf("resumed here: %d", third.resp.StatusCode)
	}
	stack.awaitListening(t, 1, a.session, true)
	stack.awaitHeard(third)
}

// TestReplicasStandingMoves: what the server says while the stream of a client moves from replica to replica reaches the
// client: the replica that the client has left holds the stream from the server, and passes on what comes. The client
// stays subscribed.
func TestReplicasStandingMoves(t *testing.T) {
	stack, a, b := newPair(t, resumeSoon, "")
	a.post(`{"jsonrpc":"2.0","id":0,"method":"logging/setLevel","params":{"level":"debug"}}`)
	a.wantPost(`{"jsonrpc":"2.0","id":1,"method":"resources/subscribe","params":{"uri":"test://a"}}`, http.StatusOK, `"result"`)
	stream := openSSE(t, a, http.MethodGet, "", "")
	last, _, _ := stream.event()
	stack.awaitListening(t, 0, a.session, true)
	for i := range 2 {
		from, to := i%2, (i+1)%2
		left := stream
		stream = openSSE(t, []*rawClient{a, b}[to], http.MethodGet, "", last)
		left.rest()
		stack.awaitListening(t, from, a.session, false)
		stack.awaitListening(t, to, a.session, true)
		for ss := range stack.server.Sessions() {
			wiretest.Check(t, ss.Log(t.Context(), &sdk.LoggingMessageParams{Level: "error", Data: fmt.Sprint("message ", i)}))
		}
		stream.awaitText(fmt.Sprint("message ", i))
		wiretest.Check(t, stack.server.ResourceUpdated(t.Context(), &sdk.ResourceUpdatedNotificationParams{URI: "test://a"}))
		last = stream.awaitText("test://a")
	}
}

// TestReplicasStandingForgotten: a client goes on hearing on its stream, of the server and of its tasks, though Redis
// came back as it was before the stream began; and the stream is still the only one.
func TestReplicasStandingForgotten(t *testing.T) {
	for _, what := range []string{"tools/list_changed", `"completed"`} {
		t.Run(what, func(t *testing.T) {
			stack, a, _ := newPair(t, resumeSoon, "")
			before := stack.store.Keys("*" + a.session)
			stream := openSSE(t, a, http.MethodGet, "", "")
			if primed, _, _ := stream.event(); primed == "" {
				t.Fatal("the stream has no ids")
			}
			stack.awaitListening(t, 0, a.session, true)
			a.post(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"wait","arguments":{},"task":{}}}`)
			<-stack.session.started
			waitUntil(t, "the session names its task", func() bool {
				st, err := tableOf(stack.gates[0]).Load(t.Context(), a.session)
				return err == nil && len(st.Tasks) == 1
			})
			for _, key := range stack.store.Keys("*" + a.session) {
				if !slices.Contains(before, key) {
					stack.store.Do("del", key)
				}
			}
			if what == `"completed"` {
				close(stack.session.proceed)
			} else {
				defer close(stack.session.proceed)
				stack.addTool("one")
			}
			stream.awaitText(what)
			stack.addTool("two")
			stream.awaitText("tools/list_changed")
			second := openSSE(t, stack.on(t, 1, a), http.MethodGet, "", "")
			defer second.close()
			second.wantStatus(http.StatusConflict)
		})
	}
}

// TestReplicasStandingMissing: a client that comes back after Redis has forgotten what it has not heard yet hears that
// messages may be missing; and then, as does one that had heard it, or whose stream goes on, what the server says.
func TestReplicasStandingMissing(t *testing.T) {
	const goesOn = "its stream"
	for i, what := range []string{"tools/list_changed", "prompts/list_changed", goesOn} {
		t.Run("after "+what, func(t *testing.T) {
			stack, a, _ := newPair(t, resumeSoon, "")
			stream := openSSE(t, a, http.MethodGet, "", "")
			stream.event()
			stack.awaitListening(t, 0, a.session, true)
			stack.addTool("one")
			last := map[string]string{"tools/list_changed": stream.awaitText("tools/list_changed")}
			goBack := stack.snapshot(a.session)
			stack.server.AddPrompt(&sdk.Prompt{Name: "new"}, nil)
			last["prompts/list_changed"] = stream.awaitText("prompts/list_changed")
			goBack()
			if what != goesOn {
				stream = openSSE(t, stack.on(t, i, a), http.MethodGet, "", last[what])
				if i == 0 { // it had not heard of the prompts
					stream.awaitText("messages may be missing")
				}
				stack.awaitListening(t, i, a.session, true)
			}
			stack.addTool("two")
			stream.awaitText("tools/list_changed")
		})
	}
}

// TestReplicasStandingNotLeft: Redis comes back as it was while a stream was open that its client has closed since. A
// client that comes without an id hears that messages may be missing: how far the stream came is unknown.
func TestReplicasStandingNotLeft(t *testing.T) {
	stack, a, _ := newPair(t, nil, "")
	stream := openSSE(t, a, http.MethodGet, "", "")
	stream.event()
	goBack := stack.snapshot(a.session)
	stream.close()
	waitUntil(t, "the stream left", func() bool { return !tableOf(stack.gates[0]).Busy(a.session) })
	goBack()
	openSSE(t, a, http.MethodGet, "", "").awaitText("messages may be missing")
}

// TestReplicasStandingNotRead: a client that does not read its stream any more keeps no other one from opening one,
// at either replica, long before a write to it fails.
func TestReplicasStandingNotRead(t *testing.T) {
	for i, where := range []string{"the same replica", "the other replica"} {
		t.Run(where, func(t *testing.T) {
			stack, a, _ := newPair(t, nil, "")
			a.post(`{"jsonrpc":"2.0","id":1,"method":"logging/setLevel","params":{"level":"debug"}}`)
			at := wiretest.Must(url.Parse(a.url))(t)
			conn := wiretest.Must(net.Dial("tcp", at.Host))(t)
			defer conn.Close()
			fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: %s\r\nAccept: text/event-stream\r\n%s: 2025-11-25\r\n%s: %s\r\n\r\n",
				at.Path, at.Host, mcp.HeaderProtocolVersion, mcp.HeaderSession, a.session)
			stack.awaitListening(t, 0, a.session, true)
			large := json.RawMessage(`"` + strings.Repeat("x", 1<<20) + `"`)
			for ss := range stack.server.Sessions() {
				for range 20 { // more than the buffers of a connection hold
					wiretest.Check(t, ss.Log(t.Context(), &sdk.LoggingMessageParams{Level: "error", Data: large}))
				}
			}
			begin := time.Now()
			stack.on(t, i, a).takeStream().close()
			if took := time.Since(begin); took > 15*time.Second {
				t.Errorf("that took %s", took)
			}
		})
	}
}
