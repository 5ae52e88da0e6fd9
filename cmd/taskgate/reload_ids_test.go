package main

import (
	"testing"
	"time"

	"taskgate/internal/mcp"
	"taskgate/shim/shimtest/fake"
)

// TestReloadedIDsAreNew: after a change of how a server is reached, the requests to it have ids that none before them
// had in the same session. Calls that began before may still be under way.
func TestReloadedIDsAreNew(t *testing.T) {
	s := fake.New(t, fake.Stateful)
	s.Tool("work", fake.Result(`{"content":[]}`))
	one := "{name: up, url: '" + s.URL + "'"
	c := runChanging(t, time.Hour, upstreamsOf(one+"}"))
	session, _ := c.beginLegacy("/up/mcp")
	call := func() {
		t.Helper()
		if _, said, _ := c.request("/up/mcp", "", `{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"work","arguments":{}}}`, mcp.HeaderSession, session); said == "" {
			t.Error("no answer")
		}
	}
	for range 3 {
		call()
	}
	c.takes(upstreamsOf(one + ", headers: {X-Secret: new}}"))
	for range 8 {
		call()
	}
	ids := map[string]bool{}
	for _, seen := range s.Seen("tools/call") {
		if key := seen.Header.Get("Mcp-Session-Id") + " " + seen.ID; ids[key] {
			t.Errorf("twice: %s", key)
		} else {
			ids[key] = true
		}
	}
	if len(ids) != 11 && !t.Failed() {
		t.Errorf("%d calls", len(ids))
	}
}
