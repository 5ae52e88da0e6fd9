package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"taskgate/gateway/config"
	"taskgate/internal/otlptest"
	"taskgate/internal/wiretest"
)

// changing is a gateway whose configuration is a file.
type changing struct {
	*running
	file string
}

// runChanging runs a gateway with a file of this text, which looks at it that often.
func runChanging(t *testing.T, every time.Duration, text string) *changing {
	t.Helper()
	c := &changing{file: filepath.Join(t.TempDir(), "taskgate.yaml")}
	c.write(t, text)
	return runFile(t, c, every)
}

func runFile(t *testing.T, c *changing, every time.Duration) *changing {
	t.Helper()
	load := func() (*config.Config, error) { return config.Load(c.file) }
	cfg, err := load()
	must(t, err)
	c.running = runConfig(t, cfg, func(s *server) { s.load, s.lookEvery = load, every })
	return c
}

// write puts a text into the file, below what each configuration of these tests has.
func (c *changing) write(t *testing.T, text string) {
	t.Helper()
	head := "admin: 127.0.0.1:0\nstore: embedded\ndrain_delay: 0s\n"
	if !strings.Contains(text, "listen:") {
		head += "listen: 127.0.0.1:0\n"
	}
	must(t, os.WriteFile(c.file+".new", []byte(head+text), 0o600))
	must(t, os.Rename(c.file+".new", c.file))
}

// reload asks for a reload.
func (c *changing) reload() (int, outcome) {
	c.t.Helper()
	status, body := c.asOperator("POST", "/reload", c.s.operators.token)
	var got outcome
	must(c.t, json.Unmarshal(body, &got))
	return status, got
}

// takes has the gateway go on with another text.
func (c *changing) takes(text string) outcome {
	c.t.Helper()
	before := c.s.inUse()
	c.write(c.t, text)
	status, got := c.reload()
	if status != http.StatusOK || got.Config == before || got.Config != c.s.inUse() {
		c.t.Fatalf("status %d, %+v, before %s", status, got, before)
	}
	return got
}

// calls a tool, and expects the answer to have a text.
func (c *changing) calls(path, want string) string {
	c.t.Helper()
	_, body := c.ask(path, wiretest.AliceKey, "tools/call", "work")
	if !strings.Contains(body, want) {
		c.t.Errorf("%s answers %s, without %s", path, body, want)
	}
	return body
}

// keyed is the auth of one principal.
func keyed(principal, key string) string {
	return "auth: {keys: ['" + principal + ":" + config.HashKey(key) + "']}\n"
}

// upstreamsOf are upstreams of these names, each with more keys.
func upstreamsOf(more ...string) string {
	return "upstreams:\n  - " + strings.Join(more, "\n  - ") + "\n"
}

// TestReload: a bad file is refused as a whole, keys hold at once, an upstream is added, changed and removed,
// and what only a restart changes is named.
func TestReload(t *testing.T) {
	one, _, _ := named(t, "one")
	two, called, letGo := named(t, "two")
	three, _, _ := named(t, "three")
	alice, a := keyed("alice", wiretest.AliceKey), "{name: a, url: '"+one+"'}"
	c := runChanging(t, time.Hour, alice+upstreamsOf(a))
	c.calls("/a/mcp", "one")

	before := c.s.inUse()
	c.write(t, alice+upstreamsOf(a, "{name: B, url: '"+two+"'}")+"rate: many\n")
	if status, got := c.reload(); status != 422 || len(got.Mistakes) != 2 || got.Config != before || c.s.inUse() != before {
		t.Errorf("a bad file: status %d, %+v", status, got)
	}
	if log := c.log.String(); strings.Count(log, "the configuration is refused") != 2 || !strings.Contains(log, "is not a whole number") {
		t.Errorf("the mistakes of the file are not in the log: %s", log)
	}
	c.calls("/a/mcp", "one")

	c.takes(keyed("bob", wiretest.BobKey) + upstreamsOf(a))
	if status, _ := c.ask("/a/mcp", wiretest.AliceKey, "tools/call", "work"); status != 401 {
		t.Errorf("a key that is gone: status %d", status)
	}
	if status, body := c.ask("/a/mcp", wiretest.BobKey, "tools/call", "work"); status != 200 {
		t.Errorf("a new key: %d %s", status, body)
	}

	b := "{name: b, url: '" + two + "', defaults: {tasks: always, ttl: 1m, timeout: 1m}}"
	c.takes(alice + upstreamsOf(a, b))
	c.calls("/a/mcp", "one")
	_, made := c.ask("/b/mcp", wiretest.AliceKey, "tools/call", "slow")
	task := made[strings.Index(made, `"taskId":"`)+10:]
	task = task[:strings.IndexByte(task, '"')]
	wiretest.Await(t, called, "a call")

	c.takes(alice + upstreamsOf(a, "{name: b, url: '"+three+"', defaults: {tasks: never}}"))
	c.calls("/b/mcp", "three") // and no task
	c.calls("/a/mcp", "one")

	c.takes(alice + upstreamsOf(a))
	c.calls("/b/mcp", "this server is no longer offered")
	if _, got := c.ready(); len(got.Upstreams) != 1 {
		t.Errorf("ready: %+v", got)
	}
	if _, body := c.ask("/b/mcp", wiretest.AliceKey, "tasks/get", task); !strings.Contains(body, `"working"`) {
		t.Errorf("the task that began at another server of this name: %s", body)
	}
	c.takes(alice + upstreamsOf(a, "{name: c, path: /b/mcp, url: '"+three+"'}"))
	c.calls("/b/mcp", "three")
	if _, body := c.ask("/b/mcp", wiretest.AliceKey, "tasks/get", task); !strings.Contains(body, `"working"`) {
		t.Errorf("the task of the server that had this path: %s", body)
	}
	letGo()
	for range 2 { // in the end it is known to have ended
		c.until("the task has ended, and can be read", func() bool {
			_, body := c.ask("/b/mcp", wiretest.AliceKey, "tasks/get", task)
			return strings.Contains(body, "two ") && strings.Contains(body, `"completed"`)
		})
	}
	c.takes(keyed("bob", wiretest.BobKey) + upstreamsOf(a, "{name: c, path: /b/mcp, url: '"+three+"'}"))
	if _, body := c.ask("/b/mcp", wiretest.BobKey, "tasks/get", task); !strings.Contains(body, "-32602") {
		t.Errorf("the task of alice, as bob: %s", body)
	}
	c.takes(alice + upstreamsOf(a, "{name: c, path: /b/mcp, auth: {keys: ['alice:"+config.HashKey(wiretest.BobKey)+"']}, url: '"+three+"'}"))
	if _, body := c.ask("/b/mcp", wiretest.BobKey, "tasks/get", task); !strings.Contains(body, "-32602") {
		t.Errorf("the task of another alice: %s", body)
	}
	c.takes(alice + upstreamsOf(a, b))
	c.calls("/b/mcp", `"taskId"`)

	c.write(t, "listen: 127.0.0.1:1\nkey_prefix: other\n"+alice+upstreamsOf(a))
	if status, got := c.reload(); status != 200 || !slices.Equal(got.Restart, []string{"listen", "key_prefix"}) {
		t.Errorf("status %d, %+v", status, got)
	}
	if !strings.Contains(c.log.String(), "restart the gateway to change it\" key=listen") {
		t.Errorf("listen is not in the log: %s", c.log)
	}
	c.calls("/a/mcp", "one")
}

// TestRemovedIsKept: an upstream that is removed is kept for as long as any policy since the start has promised.
func TestRemovedIsKept(t *testing.T) {
	url, _, _ := named(t, "one")
	a := "{name: a, url: '" + url + "'}"
	c := runChanging(t, time.Hour, upstreamsOf(a, "{name: b, url: '"+url+"', defaults: {ttl: 1m, timeout: 1m}, tools: [{match: work, ttl: 20h, timeout: 4h}]}"))
	c.takes(upstreamsOf(a, "{name: b, url: '"+url+"', defaults: {ttl: 1m, timeout: 1m}}"))
	c.takes(upstreamsOf(a))
	_, until, _ := strings.Cut(c.log.String(), " until=")
	until, _, _ = strings.Cut(until, "\n")
	end, err := time.Parse(time.RFC3339, until)
	if left := time.Until(end); err != nil || left < 23*time.Hour || left > 24*time.Hour {
		t.Errorf("it is kept until %s: %v\n%s", until, err, c.log)
	}
}

// TestReloadLimits: rates, and the limits on sizes and on calls, hold at once; a larger answer than
// before gets the bytes that it needs.
func TestReloadLimits(t *testing.T) {
	url, called, letGo := named(t, "one")
	c := runChanging(t, time.Hour, upstreamsOf("{name: a, url: '"+url+"'}"))
	c.calls("/a/mcp", "one")
	c.takes("rate: 1\n" + upstreamsOf("{name: a, url: '"+url+"'}"))
	c.until("a request comes too early", func() bool {
		status, _ := c.ask("/a/mcp", "", "tools/call", "work")
		return status == 429
	})
	c.takes("max_body: 1KiB\n" + upstreamsOf("{name: a, url: '"+url+"'}"))
	if status, body := c.ask("/a/mcp", "", "tools/call", strings.Repeat("x", 2000)); status != 413 {
		t.Errorf("a large body: %d %s", status, body)
	}
	// One call is under way: with one at a time, another one waits until there may be two.
	c.takes(upstreamsOf("{name: a, url: '" + url + "', concurrency: 1, max_result: 64MiB}"))
	slow := make(chan string, 2)
	for range 2 {
		go func() {
			_, body := c.ask("/a/mcp", "", "tools/call", "slow")
			slow <- body
		}()
	}
	wiretest.Await(t, called, "a call")
	c.takes(upstreamsOf("{name: a, url: '" + url + "', concurrency: 2, max_result: 64MiB}"))
	wiretest.Await(t, called, "another call")
	letGo()
	for range 2 {
		if body := wiretest.Await(t, slow, "an answer"); !strings.Contains(body, "one") {
			t.Error(body)
		}
	}
}

// TestReloadLooks: a change of a file that the configuration names is in use soon, also where the folder is
// replaced as Kubernetes does, by a symbolic link; a bad one is told once; an upstream that was removed is gone
// in the end.
func TestReloadLooks(t *testing.T) {
	url, _, _ := named(t, "one")
	dir := t.TempDir()
	folder := func(name, secret string) {
		must(t, os.Mkdir(filepath.Join(dir, name), 0o700))
		text := "listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\nstore: embedded\ndrain_delay: 0s\n" +
			upstreamsOf("{name: a, url: '"+url+"', headers: {X-Secret: '${file:secret}'}}", "{name: b, url: '"+url+"', defaults: {ttl: 1ms, timeout: 1ms}}")
		for file, text := range map[string]string{"taskgate.yaml": text, "secret": secret} {
			must(t, os.WriteFile(filepath.Join(dir, name, file), []byte(text), 0o600))
		}
		_ = os.Remove(filepath.Join(dir, "next")) // there is none at first
		must(t, os.Symlink(name, filepath.Join(dir, "next")))
		must(t, os.Rename(filepath.Join(dir, "next"), filepath.Join(dir, "data")))
	}
	folder("1", "first")
	c := runFile(t, &changing{file: filepath.Join(dir, "data", "taskgate.yaml")}, 20*time.Millisecond)
	c.calls("/a/mcp", "one first")
	folder("2", "second")
	c.until("the second secret is in use", func() bool {
		_, body := c.ask("/a/mcp", "", "tools/call", "work")
		return strings.Contains(body, "one second")
	})
	must(t, os.WriteFile(filepath.Join(dir, "2", "secret"), nil, 0o600))
	c.until("an empty secret is refused", func() bool { return strings.Contains(c.log.String(), "is empty") })
	c.calls("/a/mcp", "one second")
	c.write(t, upstreamsOf("{name: a, url: '"+url+"'}"))
	c.until("b is gone", func() bool {
		status, _ := c.ask("/b/mcp", "", "tools/call", "work")
		return status == 404
	})
	c.until("and the log says so", func() bool { return strings.Contains(c.log.String(), "an upstream is gone") })
	if n := strings.Count(c.log.String(), "the configuration is refused"); n != 1 {
		t.Errorf("a bad file is told %d times", n)
	}
}

// TestChangeIsTheSameForASecond: a change that was found is looked at again a second later, and is not used while it still
// changes.
func TestChangeIsTheSameForASecond(t *testing.T) {
	var c config.Config
	s := &server{reloader: newReloader(&c)}
	if s.nextLook() != lookEvery {
		t.Error(s.nextLook())
	}
	for rate := range 3 {
		s.load = func() (*config.Config, error) { return &config.Config{Rate: 1 + rate}, nil }
		s.takeChanged() // it would fail to use the configuration
		if s.nextLook() != sameFor || s.inUse() != c.Hash() {
			t.Error(s.nextLook(), s.inUse())
		}
	}
}

// TestReloadOfOthers: no page may ask for a reload, and a gateway without a file has nothing to read.
func TestReloadOfOthers(t *testing.T) {
	r := runServer(t, "http://127.0.0.1:1/mcp", nil)
	for site, want := range map[string]int{"cross-site": http.StatusForbidden, "same-origin": http.StatusUnprocessableEntity} {
		if status, _ := r.asOperator("POST", "/reload", r.s.operators.token, "Sec-Fetch-Site", site); status != want {
			t.Errorf("%s: status %d", site, status)
		}
	}
	if status, _ := r.asOperator("POST", "/reload", "wrong"); status != http.StatusUnauthorized {
		t.Errorf("without the key: status %d", status)
	}
}

// TestReloadOpensNothing: a file that lacks auth, such as one that is half-written, lets nobody in who was not.
func TestReloadOpensNothing(t *testing.T) {
	one, _, _ := named(t, "one")
	up := upstreamsOf("{name: a, url: '" + one + "'}")
	c := runChanging(t, time.Hour, keyed("alice", wiretest.AliceKey)+up)
	if got := c.takes("rate: 7\n" + up); !slices.Equal(got.Restart, []string{"auth"}) {
		t.Errorf("%+v", got)
	}
	if status, body := c.ask("/a/mcp", "", "tools/call", "work"); status != http.StatusUnauthorized {
		t.Errorf("a stranger: %d %s", status, body)
	}
	c.calls("/a/mcp", "one")
	c.takes(keyed("bob", wiretest.AliceKey) + up) // other callers are no opening
}

// TestReloadIsMeasured: /metrics has the hash of the configuration in use, and the verb prints it.
func TestReloadIsMeasured(t *testing.T) {
	url, _, _ := named(t, "one")
	c := runChanging(t, time.Hour, upstreamsOf("{name: a, url: '"+url+"'}"))
	admin, key := c.s.admin.listener.Addr().String(), c.s.operators.token
	for text, args := range map[string][]string{"rate: 10\n": {"--key", key, "--admin", admin}, "rate: 20\n": {"--admin", admin + "/console/#token=" + key}} {
		c.write(t, text+upstreamsOf("{name: a, url: '"+url+"'}"))
		var stdout, stderr strings.Builder
		if code := askReload(t.Context(), args, &stdout, &stderr); code != exitOK || strings.TrimSpace(stdout.String()) != c.s.inUse() {
			t.Errorf("exit code %d: %s%s", code, &stdout, &stderr)
		}
		page := c.scrape("text/plain")
		if n := strings.Count(page, "\ntaskgate_config_info{"); n != 1 || !strings.Contains(page, fmt.Sprintf(`taskgate_config_info{taskgate_config_hash=%q} 1`, c.s.inUse())) {
			t.Errorf("%d series, without %s", n, c.s.inUse())
		}
	}
	c.write(t, "rate: many\n")
	var stdout, stderr strings.Builder
	if code := askReload(t.Context(), []string{"--admin", admin, "--key", key}, &stdout, &stderr); code != exitFailure || !strings.Contains(stderr.String(), "is not a whole number") {
		t.Errorf("exit code %d: %s%s", code, &stdout, &stderr)
	}
}

// TestReloadIsAnEvent: OpenTelemetry hears which configuration is in use, at the start and at each change.
func TestReloadIsAnEvent(t *testing.T) {
	receiver := otlptest.Start(t)
	setVariables(t, receiver.Env())
	t.Setenv("OTEL_BLRP_SCHEDULE_DELAY", "10")
	c := runChanging(t, time.Hour, upstreamsOf("{name: a, url: 'http://127.0.0.1:1/mcp'}"))
	hashes := []string{c.s.inUse()}
	for _, text := range []string{"rate: 10\n", "rate: 20\n"} {
		hashes = append(hashes, c.takes(text+upstreamsOf("{name: a, url: 'http://127.0.0.1:1/mcp'}")).Config)
	}
	c.write(t, "rate: many\n")
	if status, _ := c.reload(); status != http.StatusUnprocessableEntity {
		t.Errorf("a bad file: status %d", status)
	}
	var used []string
	receiver.Until(t, "the events of each configuration", patience, func() bool {
		used = nil
		for _, l := range receiver.Logs() {
			if l.Event == "taskgate.config.used" {
				used = append(used, l.Attributes["config"])
			}
		}
		return len(used) >= len(hashes)
	})
	if !slices.Equal(used, hashes) {
		t.Errorf("the events are of %q, and not of %q", used, hashes)
	}
}

// TestReloadsLeaveNothing: what an upstream was before each of many changes is gone, with its connections
// and goroutines.
func TestReloadsLeaveNothing(t *testing.T) {
	url, _, _ := named(t, "one")
	c := runChanging(t, time.Hour, upstreamsOf("{name: a, url: '"+url+"'}"))
	change := func(n int) {
		c.takes(upstreamsOf(fmt.Sprintf("{name: a, url: '%s', headers: {X-Secret: 'n%d'}}", url, n)))
		c.calls("/a/mcp", fmt.Sprintf("one n%d", n))
	}
	held := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	for n := range 10 {
		change(n)
	}
	goroutines, bytes := runtime.NumGoroutine(), held()
	const times = 50
	for n := range times {
		change(100 + n)
	}
	c.until("the goroutines are as many as before", func() bool { return runtime.NumGoroutine() <= goroutines+10 })
	if now := held(); now > bytes+times*20<<10 {
		t.Errorf("%d bytes after %d changes, %d before", now, times, bytes)
	}
}

// TestPathIsTakenOver: where another upstream has the path of one that was removed, clients hear how to sign in at
// that one.
func TestPathIsTakenOver(t *testing.T) {
	url, _, _ := named(t, "one")
	at := func(name, auth string) string {
		return "public_url: https://gateway.example\n" + upstreamsOf("{name: "+name+", path: /mcp, url: '"+url+"', auth: {"+auth+"}}")
	}
	jwt := func(issuer string) string {
		return "jwt: {issuer: 'http://127.0.0.1:1/" + issuer + "', audiences: [x]}"
	}
	c := runChanging(t, time.Hour, at("a", jwt("first")))
	page := func(want string) {
		t.Helper()
		resp, err := http.Get("http://" + c.s.listener.Addr().String() + "/.well-known/oauth-protected-resource/mcp")
		must(t, err)
		defer resp.Body.Close()
		if text, _ := io.ReadAll(resp.Body); !strings.Contains(string(text), want) {
			t.Errorf("the page says %s, without %s", text, want)
		}
	}
	page("/first")
	c.takes(at("b", jwt("second")))
	page("/second")
	c.takes(at("c", "keys: ['alice:"+config.HashKey(wiretest.AliceKey)+"']"))
	page("not found")
}

// TestTaskResultIsNamedOnce: the log names the tool task_result once, with the upstreams whose slow calls it reads.
func TestTaskResultIsNamedOnce(t *testing.T) {
	url, _, _ := named(t, "one")
	a, b, rest := "{name: a, url: '"+url+"'}", "{name: b, url: '"+url+"', defaults: {tasks: never}, tools: [{match: slow, tasks: auto}]}",
		"{name: c, url: '"+url+"', defaults: {tasks: never}}"
	c := runChanging(t, time.Hour, upstreamsOf(a, b, rest, "{name: d, url: '"+url+"', without_tasks: block}"))
	c.until("the configuration is in use", func() bool { return strings.Contains(c.log.String(), "the configuration is in use") })
	c.takes(upstreamsOf(a, rest))
	c.takes(upstreamsOf(a, b, rest))
	if log := c.log.String(); strings.Count(log, "task_result") != 1 || !strings.Contains(log, `upstreams="[a b]"`) {
		t.Error(log)
	}
}

// TestRemovedAtThePath: the tasks of an upstream that got another name can be read, also if its keys change later. An
// auth of its own may have another alice than that of all.
func TestRemovedAtThePath(t *testing.T) {
	us := upstreams{}
	for name, keys := range map[string][]config.BearerKey{"old": {"a:1"}, "new": {"a:1", "b:2"}, "all": nil, "other": {"a:1"}} {
		u := config.NewUpstream(name, "http://127.0.0.1:1")
		if u.Path, u.Removed = "/mcp", name == "old"; keys != nil {
			u.Auth = &config.UpstreamAuth{Keys: keys}
		}
		us[name] = &offered{config: u}
	}
	us["other"].config.Path = "/other"
	for name, want := range map[string]string{"new": "[old]", "all": "[]", "other": "[]"} {
		if got := fmt.Sprint(us.removedAt(us[name].config)); got != want {
			t.Errorf("%s: %s", name, got)
		}
	}
}
