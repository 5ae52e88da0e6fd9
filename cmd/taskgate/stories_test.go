package main

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"taskgate/gateway/config"
	"taskgate/gateway/operator"
	"taskgate/internal/wiretest"
)

// The stories of the one who is woken at night: each begins with what an alert says, and has the answer after at most three
// questions.

// operatorRuns is what a command line of an operator prints.
func (r *running) operatorRuns(line string) string {
	r.t.Helper()
	var out, wrong logged
	args := strings.Fields(line)
	address := "http://" + r.s.admin.listener.Addr().String() + "/console/#token=" + r.s.operators.token
	if code := runOperator(r.t.Context(), args[0], append(args[1:], "--admin", address), nil, &out, &wrong); code != exitOK {
		r.t.Fatalf("%s: %s", line, wrong.String())
	}
	return out.String()
}

// untilRuns waits until a command line prints all these words.
func (r *running) untilRuns(line string, words ...string) (text string) {
	r.t.Helper()
	r.until(fmt.Sprintf("%s prints %q", line, words), func() bool {
		text = r.operatorRuns(line)
		for _, word := range words {
			if !strings.Contains(text, word) {
				return false
			}
		}
		return true
	})
	return text
}

// TestStoryOfAHangingTask: taskgate_tasks_oldest_age_seconds is high. Which task is it, where does it hang, and how is it ended?
func TestStoryOfAHangingTask(t *testing.T) {
	server, called, _ := named(t, "up")
	r := runServer(t, server, func(c *config.Config) { quickTasks(c); c.DrainTimeout = 100 * time.Millisecond })
	if status, body := r.post("tools/call", "slow"); !strings.Contains(body, `"resultType":"task"`) {
		t.Fatal(status, body)
	}
	<-called
	r.shows("text/plain", `taskgate_tasks_oldest_age_seconds\{`)

	oldest := r.untilRuns("tasks list --filter status=open --oldest --limit 1", "slow", "working") // 1
	id := strings.Fields(strings.Split(oldest, "\n")[1])[0]
	r.untilRuns("tasks show "+id, "sent", "working", string(r.s.replica)) // 2
	r.untilRuns("tasks cancel "+id, "is cancelled")                       // 3

	r.untilRuns("tasks list --filter status=cancelled --filter ended_within=1h", id)
}

// TestStoryOfAFlood: taskgate_limit_refusals_total rises. Who is it, and what does it do?
func TestStoryOfAFlood(t *testing.T) {
	server, _, _ := named(t, "up")
	r := runServer(t, server, func(c *config.Config) {
		wiretest.WithKeys(c)
		c.Rate = 3
	})
	refused := 0
	for range 60 {
		if status, _ := r.ask("/mcp", wiretest.BobKey, "tools/call", "work"); status == http.StatusTooManyRequests {
			refused++
		}
	}
	if status, body := r.ask("/mcp", wiretest.AliceKey, "tools/call", "work"); status != http.StatusOK {
		t.Fatalf("alice is served: %d %s", status, body)
	}
	if refused == 0 {
		t.Fatal("nothing is refused")
	}
	r.shows("text/plain", `taskgate_limit_refusals_total\{.*taskgate_limit="rate".*\} [1-9]`)

	r.until("the one who floods is on top", func() bool { // 1
		all := tell[operator.Clients](r, "/clients").Clients
		return len(all) > 1 && all[0].Principal == "bob" && all[0].LastMinute >= refused && all[0].Methods["refused"] >= refused
	})
	text := r.untilRuns("clients", "alice", "LAST-MINUTE")
	if !strings.Contains(r.log.String(), `msg="requests are refused" http.response.status_code=429`) { // 2
		t.Errorf("the log does not say whom it refuses:\n%s", text)
	}
}

// TestStoryOfADeadServer: taskgate_upstream_up is 0. Which server is it, since when, and what have its callers got?
func TestStoryOfADeadServer(t *testing.T) {
	r := runServer(t, "http://127.0.0.1:1/mcp", nil)
	for range 3 {
		if _, body := r.post("tools/call", "work"); !strings.Contains(body, "-32603") {
			t.Fatal(body)
		}
	}
	r.shows("text/plain", `taskgate_upstream_up\{.*taskgate_upstream="mcp".*\} 0`)

	r.untilRuns("upstreams", "mcp", "unreachable", "connection refused")        // 1: which, and why
	if !strings.Contains(r.log.String(), `msg="request failed" upstream=mcp`) { // 2: since when
		t.Errorf("not logged:\n%s", r.log)
	}
	r.until("the calls that failed are counted", func() bool { // 3: how many
		errors := 0
		for _, m := range tell[operator.Stats](r, "/stats").Minutes {
			errors += m.Calls["error"]
		}
		return errors == 3
	})
}

// TestClients: an operator sees who sends requests and who holds what.
func TestClients(t *testing.T) {
	server, called, _ := named(t, "up")
	r := runServer(t, server, func(c *config.Config) {
		quickTasks(c)
		wiretest.WithKeys(c)
		c.DrainTimeout = 100 * time.Millisecond
	})
	for range 2 {
		r.ask("/mcp", wiretest.AliceKey, "tools/call", "slow")
		<-called
	}
	r.request("/mcp", "", `{"jsonrpc":"2.0","id":1,"method":"ping"}`)
	r.untilRuns("clients", "alice", "tools/call")
	r.until("alice has two tasks", func() bool {
		for _, c := range tell[operator.Clients](r, "/clients").Clients {
			if c.Principal == "alice" && c.Tasks == 2 && c.LastHour == 2 && c.Methods["tools/call"] == 2 {
				return true
			}
		}
		return false
	})
	r.shows("text/plain", `taskgate_caller_requests_total\{.*mcp_method_name="tools/call".*taskgate_principal="alice".*\} 2`)
}
