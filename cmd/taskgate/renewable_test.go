package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"taskgate/gateway/upstream"
	"taskgate/internal/wiretest"
)

// lockVar makes this program a modern server over stdio that owns the lock of this name while it runs.
const lockVar = "TASKGATE_TEST_LOCK"

// locked is that server. It answers with $NAME, and takes a moment to end. The call of the tool "slow" goes
// to $SLOW.
func locked(lock string) {
	if err := os.Mkdir(lock, 0o700); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		var q struct {
			ID     json.RawMessage `json:"id"`
			Method string          `json:"method"`
			Params struct{ Name string }
		}
		if err := json.Unmarshal(in.Bytes(), &q); err != nil || q.ID == nil {
			continue
		}
		result := `"content":[{"type":"text","text":"locked ` + os.Getenv("NAME") + `"}]`
		switch {
		case q.Method == "server/discover":
			result = `"supportedVersions":["2026-07-28"],"capabilities":{"tools":{}}`
		case q.Method == "tools/list":
			result = `"tools":[{"name":"work","inputSchema":{"type":"object"}},{"name":"slow","inputSchema":{"type":"object"}}]`
		case q.Params.Name == "slow":
			resp, err := http.Post(os.Getenv("SLOW"), "application/json", strings.NewReader(in.Text()))
			if err != nil {
				os.Exit(1)
			}
			_ = resp.Body.Close()
		}
		fmt.Printf(`{"jsonrpc":"2.0","id":%s,"result":{"resultType":"complete",%s}}`+"\n", q.ID, result)
	}
	<-time.After(300 * time.Millisecond)
	_ = os.Remove(lock)
}

// TestReloadOfACommand: a server over stdio that owns a lock starts anew with each change of its
// environment, after the process of before, whether that is idle or has a call under way.
func TestReloadOfACommand(t *testing.T) {
	startsProcesses(t)
	t.Parallel()
	slow, called, letGo := named(t, "slow")
	lock := t.TempDir() + "/lock"
	// A program with the race detector waits for a second before it ends, unless it is told not to.
	upstream := func(name string) string {
		return upstreamsOf(fmt.Sprintf("{name: a, command: '%s', era: modern, env: {GORACE: atexit_sleep_ms=0, %s: '%s', SLOW: '%s', NAME: '%s'}}", os.Args[0], lockVar, lock, slow, name))
	}
	c := runChanging(t, time.Hour, upstream("one"))
	c.calls("/a/mcp", "locked one")
	for _, name := range []string{"two", "three"} {
		c.takes(upstream(name))
		c.calls("/a/mcp", "locked "+name)
	}

	underWay, next := make(chan string, 1), make(chan string, 1)
	go func() {
		_, body := c.ask("/a/mcp", "", "tools/call", "slow")
		underWay <- body
	}()
	wiretest.Await(t, called, "a call")
	c.takes(upstream("four"))
	c.takes(upstream("five"))
	go func() {
		_, body := c.ask("/a/mcp", "", "tools/call", "work")
		next <- body
	}()
	letGo()
	if body := wiretest.Await(t, underWay, "the call of before"); !strings.Contains(body, "locked three") {
		t.Error(body)
	}
	if body := wiretest.Await(t, next, "the call after"); !strings.Contains(body, "locked five") {
		t.Error(body)
	}
}

// TestHandover: processes of a changed server start once those of before have ended, and beside one that
// takes longer than handover, also where it is not the last before them.
func TestHandover(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := func() *lease {
			up, err := upstream.New(upstream.Config{Name: "a", URL: "http://127.0.0.1:1/mcp"})
			must(t, err)
			l := newLease()
			l.ServerClient = up
			return l
		}
		begins := func(l *lease, want time.Duration) {
			t.Helper()
			begun := time.Now()
			<-l.alone.Done()
			if took := time.Since(begun); took != want {
				t.Errorf("it began after %v, not %v", took, want)
			}
		}
		r := newRenewable()
		idle, busy, skipped, last := client(), client(), client(), client()
		r.renewClient(idle)
		begins(idle, 0)
		r.renewClient(busy)
		begins(busy, 0)
		_, leave := r.enterClient()
		r.renewClient(skipped)
		<-time.After(time.Second)
		r.renewClient(last)
		begins(last, handover-time.Second)
		leave()
		if err := r.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}
