package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"taskgate/gateway/config"
	"taskgate/gateway/operator"
	"taskgate/internal/redistest"
)

// tell reads a path of the interface.
func tell[T any](r *running, path string) (out T) {
	r.t.Helper()
	status, body := r.asOperator("GET", operator.Base+path, r.s.operators.token)
	if err := json.Unmarshal(body, &out); err != nil || status != http.StatusOK {
		r.t.Fatalf("%s: %d %s", path, status, body)
	}
	return out
}

// quickTasks makes a task of every call that does not answer at once.
func quickTasks(c *config.Config) { c.Upstreams[0].Defaults.Grace = time.Millisecond }

// Over one Redis each replica says the same of everything, and cancels what another one runs; one that goes is
// listed as gone, and what it has counted stays.
func TestReplicasSayTheSame(t *testing.T) {
	server, called, _ := named(t, "up")
	url := redistest.Start(t).URL()
	shared := func(c *config.Config) {
		quickTasks(c)
		c.Store, c.Heartbeat, c.DrainTimeout = url, time.Second, 100*time.Millisecond
	}
	one, two := runServer(t, server, shared), runServer(t, server, shared)
	for range 3 {
		if status, body := one.post("tools/call", "slow"); !strings.Contains(body, `"resultType":"task"`) {
			t.Fatal(status, body)
		}
		<-called
	}
	two.until("both have reported what runs", func() bool {
		up := tell[operator.Upstreams](two, "/upstreams").Upstreams
		return len(up) == 1 && len(up[0].Replicas) == 2 && up[0].Tasks == 3 && up[0].Calls == 3 && up[0].Reachable
	})
	two.until("the counts are reported", func() bool {
		return made(tell[operator.Stats](two, "/stats")) == 3
	})
	for _, path := range []string{"/tasks", "/tasks?status=working", "/tasks?order=oldest&limit=2", "/questions", "/stats", "/upstreams"} {
		_, a := one.asOperator("GET", operator.Base+path, one.s.operators.token)
		_, b := two.asOperator("GET", operator.Base+path, two.s.operators.token)
		if !bytes.Equal(a, b) {
			t.Errorf("%s:\n%s\n%s", path, a, b)
		}
	}
	tasks := tell[operator.Tasks](two, "/tasks").Tasks
	if len(tasks) != 3 || tasks[0].Tool != "slow" || tasks[0].Replica != string(one.s.replica) {
		t.Fatalf("%+v", tasks)
	}
	cancelElsewhere(t, one, two, tasks[0].ID)
	one.stop()
	two.until("the first one is gone", func() bool {
		i := slices.IndexFunc(tell[operator.Replicas](two, "/replicas").Replicas, func(r operator.Replica) bool {
			return r.Name == string(one.s.replica) && !r.Alive && r.Version != ""
		})
		return i >= 0
	})
	if n := made(tell[operator.Stats](two, "/stats")); n != 3 {
		t.Errorf("%d tasks were made, when the replica that made them is gone", n)
	}
}

// made is how many tasks were made in the hour.
func made(s operator.Stats) (n int) {
	for _, m := range s.Minutes {
		n += m.Made
	}
	return n
}

// cancelElsewhere cancels a task of one replica at another.
func cancelElsewhere(t *testing.T, one, two *running, id string) {
	t.Helper()
	path := operator.Base + "/tasks/" + id
	if status, body := two.asOperator("POST", path+"/cancel", two.s.operators.token); status != http.StatusOK {
		t.Fatalf("%d %s", status, body)
	}
	if status, body := two.asOperator("POST", path+"/cancel", two.s.operators.token); status != http.StatusConflict {
		t.Errorf("again: %d %s", status, body)
	}
	got := tell[operator.TaskDetail](one, "/tasks/"+id)
	var kinds []string
	for _, e := range got.Events {
		kinds = append(kinds, e.Kind)
	}
	if got.Status != "cancelled" || got.Message != "cancelled by an operator" || !slices.Contains(kinds, "made") || kinds[len(kinds)-1] != "cancelled" {
		t.Errorf("%+v", got)
	}
	one.until("its runner has let go", func() bool {
		return len(tell[operator.Tasks](one, "/tasks?replica="+string(one.s.replica)).Tasks) == 2
	})
}

// operatorPaths are all that an operator can ask for.
var operatorPaths = [][2]string{
	{"GET", "/access"}, {"GET", "/tasks"}, {"GET", "/totals"}, {"GET", "/clients"}, {"GET", "/tasks/" + unknownTask}, {"POST", "/tasks/" + unknownTask + "/cancel"}, {"POST", "/tasks/" + unknownTask + "/rerun"}, {"GET", "/questions"},
	{"GET", "/replicas"}, {"GET", "/upstreams"}, {"GET", "/store"}, {"POST", "/upstreams/mcp/pause"}, {"POST", "/upstreams/mcp/resume"}, {"GET", "/stats"}, {"GET", "/changes"}, {"POST", "/open"},
}

const unknownTask = "5b0d3d2e-8a37-4b1e-9a57-0d9a3a1c9f00"

// What an admin listener gives to whom.
func TestAdminAuth(t *testing.T) {
	const key = "a-key-of-ann"
	keys := []config.BearerKey{config.BearerKey("ann:" + config.HashKey(key))}
	for name, c := range map[string]struct {
		change func(*config.Config)
		key    string // that lets in; "" for the token of the process
		off    bool
	}{
		"a token on loopback": {change: func(*config.Config) {}},
		"a key":               {change: func(c *config.Config) { c.AdminAuth.Keys = keys }, key: key},
		"a key elsewhere":     {change: func(c *config.Config) { c.Admin, c.AdminAuth.Keys = "0.0.0.0:0", keys }, key: key},
		"nothing elsewhere":   {change: func(c *config.Config) { c.Admin = "0.0.0.0:0" }, key: key, off: true},
	} {
		t.Run(name, func(t *testing.T) {
			r := runServer(t, "http://127.0.0.1:1/mcp", c.change)
			key := cmp.Or(c.key, r.s.operators.token)
			refused := map[bool]int{false: http.StatusUnauthorized, true: http.StatusForbidden}[c.off]
			for _, p := range operatorPaths {
				for _, wrong := range []string{"", "wrong", "local", unknownTask} {
					if status, body := r.asOperator(p[0], operator.Base+p[1], wrong); status != refused {
						t.Errorf("%s with %q: %d %s", p, wrong, status, body)
					}
				}
				if status, body := r.asOperator(p[0], operator.Base+p[1], key, "Origin", "https://evil.example"); status != http.StatusForbidden {
					t.Errorf("%s of a foreign page: %d %s", p, status, body)
				}
				if !isLoopback(r.s.config.Admin) {
					continue // it may be known by any name
				}
				if status, body := r.asOperator(p[0], operator.Base+p[1], key, "Host", "evil.example"); status != http.StatusForbidden {
					t.Errorf("%s by a forged name: %d %s", p, status, body)
				}
			}
			want := map[bool]int{false: http.StatusOK, true: http.StatusForbidden}[c.off]
			for _, path := range []string{"/api/v1/access", "/console/", "/openapi.json"} {
				if status, body := r.asOperator("GET", path, key); status != want || c.off && !strings.Contains(string(body), "admin_auth") {
					t.Errorf("%s: %d %s", path, status, body)
				}
			}
			for _, path := range []string{"/healthz", "/metrics"} {
				if status, _ := r.asOperator("GET", path, ""); status != http.StatusOK {
					t.Errorf("a probe of %s: %d", path, status)
				}
			}
		})
	}
}

// Arguments and questions are shown where that is on, and nowhere else; who cancels is in the audit log.
func TestAdminContent(t *testing.T) {
	url, called, _ := named(t, "up")
	for _, on := range []config.Switch{config.On, config.Off} {
		audit := filepath.Join(t.TempDir(), "audit")
		r := runServer(t, url, func(c *config.Config) {
			quickTasks(c)
			c.Audit, c.AdminContent, c.TraceURL = audit, on, "https://traces.example/{trace_id}"
		})
		if status, body := r.post("tools/call", "slow"); !strings.Contains(body, `"resultType":"task"`) {
			t.Fatal(status, body)
		}
		<-called
		id := tell[operator.Tasks](r, "/tasks").Tasks[0].ID
		got := tell[operator.TaskDetail](r, "/tasks/"+id)
		if shown := got.Arguments != nil; shown != (on == config.On) || got.ContentShown != shown {
			t.Errorf("%s: %+v", on, got)
		}
		if status, body := r.asOperator("POST", operator.Base+"/tasks/"+id+"/cancel", r.s.operators.token); status != http.StatusOK {
			t.Errorf("%d %s", status, body)
		}
		r.ends()
		log, err := os.ReadFile(audit)
		if err != nil || !strings.Contains(string(log), `"event":"task cancelled by an operator","principal":"local"`) || !strings.Contains(string(log), id) {
			t.Errorf("%s %v", log, err)
		}
	}
}

// Operators see where tasks are kept, without the password, and how large the folder is.
func TestStoreIsDescribed(t *testing.T) {
	url := redistest.Start(t).URL()
	r := runServer(t, "http://127.0.0.1:1/mcp", func(c *config.Config) { c.Store = url })
	if got := tell[operator.Store](r, "/store"); got.Kind != "redis" || got.Masters != 1 || got.UsedBytes == 0 || got.Address == "" || strings.Contains(got.Address, "/") || got.Error != "" {
		t.Errorf("%+v", got)
	}
	folder := t.TempDir()
	r = runServer(t, "http://127.0.0.1:1/mcp", func(c *config.Config) { c.Store = "file:" + folder })
	if got := tell[operator.Store](r, "/store"); got.Kind != "file" || got.Folder != folder || got.FolderBytes == 0 || got.LatencyMs <= 0 || got.Error != "" {
		t.Errorf("%+v", got)
	}
}

// A failed call runs again for an operator: in the interface, and in the audit log with both names. What its policy does
// not allow is refused with the reason.
func TestRerunByAnOperator(t *testing.T) {
	var calls atomic.Int32
	answers := namedServer("up", nil, nil)
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		body, _ := io.ReadAll(q.Body)
		if bytes.Contains(body, []byte("tools/call")) {
			calls.Add(1)
			panic(http.ErrAbortHandler)
		}
		q.Body = io.NopCloser(bytes.NewReader(body))
		answers.ServeHTTP(w, q)
	}))
	t.Cleanup(web.Close)
	audit := filepath.Join(t.TempDir(), "audit")
	keys := config.Auth{Keys: []config.BearerKey{config.BearerKey("ann:" + config.HashKey(unknownTask))}}
	for _, on := range []config.Switch{config.Off, config.On} {
		r := runServer(t, web.URL, func(c *config.Config) {
			c.Upstreams[0].Defaults.Tasks = config.TasksRequired
			c.Audit, c.Auth, c.Upstreams[0].Defaults.Rerun = audit, keys, on
		})
		if status, body := r.ask("/mcp", unknownTask, "tools/call", "work"); !strings.Contains(body, `"resultType":"task"`) {
			t.Fatal(status, body)
		}
		id := tell[operator.Tasks](r, "/tasks").Tasks[0].ID
		r.until("it has failed", func() bool { return tell[operator.TaskDetail](r, "/tasks/"+id).Outcome != "" })
		before := calls.Load()
		status, body := r.asOperator("POST", operator.Base+"/tasks/"+id+"/rerun", r.s.operators.token)
		if on == config.Off {
			if status != http.StatusConflict || !strings.Contains(string(body), "rerun: on") || tell[operator.TaskDetail](r, "/tasks/"+id).Rerunnable {
				t.Errorf("%d %s", status, body)
			}
			r.ends()
			continue
		}
		var made operator.Task
		if err := json.Unmarshal(body, &made); err != nil || status != http.StatusOK || made.Principal != "ann" {
			t.Fatalf("%d %s: %v", status, body, err)
		}
		r.until("the server is called again", func() bool { return calls.Load() > before })
		if got := tell[operator.TaskDetail](r, "/tasks/"+id); got.RerunAs != made.ID || got.Rerunnable {
			t.Errorf("%+v", got)
		}
		if got := tell[operator.TaskDetail](r, "/tasks/"+made.ID); got.RerunOf != id || got.Arguments != nil {
			t.Errorf("%+v", got)
		}
		r.ends()
		log, err := os.ReadFile(audit)
		if err != nil || !strings.Contains(string(log), `"event":"task run again by an operator","principal":"local","upstream":"mcp","task":"`+id+`","as":"`+made.ID+`","owner":"ann"`) {
			t.Errorf("%s %v", log, err)
		}
	}
}

// TestLinkOpensTheConsoleOnce: a browser gets another key for that of the link, which it has in its history. The command
// line goes on with it.
func TestLinkOpensTheConsoleOnce(t *testing.T) {
	r := runServer(t, "http://127.0.0.1:1/mcp", nil)
	link, browser := r.s.operators.token, []string{"Sec-Fetch-Site", "same-origin"}
	var got operator.Opened
	status, body := r.asOperator("POST", operator.Base+"/open", link, browser...)
	if err := json.Unmarshal(body, &got); err != nil || status != http.StatusOK || got.Key == "" || got.Key == link {
		t.Fatalf("%d %s: %v", status, body, err)
	}
	for key, want := range map[string]int{link: http.StatusUnauthorized, got.Key: http.StatusOK} {
		if status, body := r.asOperator("GET", operator.Base+"/access", key, browser...); status != want {
			t.Errorf("a browser with %s: %d %s", key, status, body)
		}
		if status, body := r.asOperator("GET", operator.Base+"/access", key); status != http.StatusOK {
			t.Errorf("the command line with %s: %d %s", key, status, body)
		}
		if status, body := r.asOperator("POST", operator.Base+"/open", key); status != http.StatusOK || strings.TrimSpace(string(body)) != "{}" {
			t.Errorf("a second opening with %s: %d %s", key, status, body)
		}
	}
}

// The token of a process is said once, by which a browser finds the console, and goes to no system that collects logs.
func TestTokenIsSaidOnce(t *testing.T) {
	r := runServer(t, "http://127.0.0.1:1/mcp", nil)
	r.until("it is said", func() bool { return strings.Contains(r.log.String(), "#token=") })
	if n := strings.Count(r.log.String(), r.s.operators.token); n != 1 || len(r.s.operators.token) < 20 {
		t.Errorf("%d times: %s", n, r.log)
	}
	at := regexp.MustCompile(`http://\S+/console/`).FindString(r.log.String())
	resp, err := http.Get(at)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatal(resp, err)
	}
	resp.Body.Close()
}
