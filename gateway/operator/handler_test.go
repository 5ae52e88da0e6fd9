package operator

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"taskgate/gateway/auth"
	"taskgate/gateway/config"
	"taskgate/shim"
)

// source is a Source with one task, which counts what it is asked.
type source struct {
	asked   int
	query   shim.Query
	content bool
	by      string
	err     error
}

const theTask = "5b0d3d2e-8a37-4b1e-9a57-0d9a3a1c9f00"

func (s *source) Tasks(_ context.Context, q shim.Query) (Tasks, error) {
	s.asked++
	s.query = q
	return Tasks{Tasks: []Task{{ID: theTask, Message: "<b>&"}}, Next: "more"}, s.err
}

func (s *source) Task(_ context.Context, _ string, content bool) (TaskDetail, error) {
	s.asked++
	s.content = content
	return TaskDetail{}, s.err
}

func (s *source) Totals(context.Context, shim.Query) (Totals, error) {
	s.asked++
	return Totals{}, s.err
}

func (s *source) Cancel(_ context.Context, id, by string) (Task, error) {
	s.asked++
	s.by = by
	return Task{ID: id, Upstream: "up", Principal: "alice"}, s.err
}

func (s *source) Rerun(_ context.Context, id, by string) (old, made Task, err error) {
	s.asked++
	s.by = by
	return Task{ID: id, Upstream: "up", Principal: "alice"}, Task{ID: "new"}, s.err
}

func (s *source) Pause(_ context.Context, upstream, tool, by string) (Pause, error) {
	s.asked++
	s.by = by
	return Pause{Upstream: upstream, Tool: tool, Operator: by}, s.err
}

func (s *source) Resume(_ context.Context, upstream, tool string) (Pause, error) {
	s.asked++
	return Pause{Upstream: upstream, Tool: tool}, s.err
}

func (s *source) Questions(_ context.Context, content bool) (Questions, error) {
	s.asked++
	s.content = content
	return Questions{}, s.err
}

func (s *source) Replicas(context.Context) (Replicas, error) { s.asked++; return Replicas{}, s.err }

func (s *source) Upstreams(context.Context) (Upstreams, error) { s.asked++; return Upstreams{}, s.err }

func (s *source) Store(context.Context) (Store, error) { s.asked++; return Store{}, s.err }

func (s *source) Clients(context.Context) (Clients, error) { s.asked++; return Clients{}, s.err }

func (s *source) Stats(context.Context, string) (Stats, error) { s.asked++; return Stats{}, s.err }

func (s *source) Changes(ctx context.Context, changed func()) error {
	s.asked++
	changed()
	<-ctx.Done()
	return ctx.Err()
}

// methodOf is a way to sign in.
func methodOf(t *testing.T, a config.Auth) auth.Method {
	t.Helper()
	c := config.Config{Auth: a, Upstreams: []*config.Upstream{config.NewUpstream("admin", "")}}
	methods, err := auth.New(&c, auth.Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return methods.Of("admin")
}

const key = "the-key-of-ann"

var keys = config.Auth{Keys: []config.BearerKey{config.BearerKey("ann:" + config.HashKey(key))}}

// request is one to a path below Base, or to another path, with headers.
func request(method, path string, headers ...string) *http.Request {
	r := httptest.NewRequest(method, "http://gate.example:9090"+path, nil)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Add(headers[i], headers[i+1])
	}
	return r
}

func serve(h http.Handler, r *http.Request) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// paths are all paths with their methods.
func paths() (all [][2]string) {
	for _, r := range routes {
		all = append(all, [2]string{r.method, Base + strings.ReplaceAll(r.path, "{id}", theTask)})
	}
	return append(all, [2]string{"GET", Base + "/"}, [2]string{"GET", Base + "/nothing"}, [2]string{"DELETE", Base + "/tasks"})
}

const signed = "Bearer " + key

// Nobody gets past the door without rights, at any path.
func TestNobodyGetsInWithoutRights(t *testing.T) {
	for name, c := range map[string]struct {
		headers []string
		status  int
	}{
		"no key":              {nil, 401},
		"a wrong key":         {[]string{"Authorization", "Bearer wrong"}, 401},
		"an empty key":        {[]string{"Authorization", "Bearer "}, 400},
		"another scheme":      {[]string{"Authorization", "Basic " + key}, 401},
		"two keys":            {[]string{"Authorization", signed, "Authorization", "Bearer wrong"}, 400},
		"a cookie":            {[]string{"Cookie", "token=" + key}, 401},
		"a foreign Origin":    {[]string{"Authorization", signed, "Origin", "https://evil.example"}, 403},
		"another port":        {[]string{"Authorization", signed, "Origin", "http://gate.example:9091"}, 403},
		"no page's Origin":    {[]string{"Authorization", signed, "Origin", "null"}, 403},
		"two Origins":         {[]string{"Authorization", signed, "Origin", "http://gate.example:9090", "Origin", "https://evil.example"}, 403},
		"another site":        {[]string{"Authorization", signed, "Sec-Fetch-Site", "cross-site"}, 403},
		"a neighbour of ours": {[]string{"Authorization", signed, "Sec-Fetch-Site", "same-site"}, 403},
	} {
		t.Run(name, func(t *testing.T) {
			var log bytes.Buffer
			s := &source{}
			h := New(Options{Source: s, Method: methodOf(t, keys), Audit: slog.New(slog.NewJSONHandler(&log, nil))})
			for _, p := range paths() {
				log.Reset()
				w := serve(h, request(p[0], p[1], c.headers...))
				if w.Code != c.status || s.asked > 0 {
					t.Errorf("%s %s: %d %s", p[0], p[1], w.Code, w.Body)
				}
				if w.Header().Get("Access-Control-Allow-Origin") != "" || w.Header().Get("Content-Security-Policy") != policy {
					t.Errorf("%s %s: %v", p[0], p[1], w.Header())
				}
				if !strings.Contains(log.String(), "operator refused") || strings.Contains(log.String(), key) {
					t.Errorf("the audit log: %s", log.String())
				}
			}
			if w := serve(h, request("GET", Base+"/tasks?key="+key+"&token="+key)); w.Code != 401 {
				t.Errorf("a key in the address: %d", w.Code)
			}
		})
	}
}

// With rights each path answers, and says what it has in JSON that nothing takes for a page.
func TestPathsAnswer(t *testing.T) {
	for _, r := range routes {
		if r.answer == nil {
			continue
		}
		s := &source{}
		h := New(Options{Source: s, Method: methodOf(t, keys), Version: "1", Replica: "r"})
		w := serve(h, request(r.method, Base+strings.ReplaceAll(r.path, "{id}", theTask), "Authorization", signed, "Origin", "http://gate.example:9090"))
		var got any
		if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil || w.Code != 200 || w.Header().Get("Content-Type") != "application/json" ||
			w.Header().Get("X-Content-Type-Options") != "nosniff" || w.Header().Get("Cache-Control") != "no-store" {
			t.Errorf("%s: %d %v %s", r.path, w.Code, w.Header(), w.Body)
		}
		for err, status := range map[error]int{shim.ErrNotFound: 404, shim.ErrFinal: 409, shim.ErrCursor: 400, errors.New("x"): 503} {
			if s.err = err; r.path == "/access" || r.path == "/open" {
				continue
			}
			if w := serve(h, request(r.method, Base+strings.ReplaceAll(r.path, "{id}", theTask), "Authorization", signed)); w.Code != status {
				t.Errorf("%s after %v: %d", r.path, err, w.Code)
			}
		}
	}
}

// TestErrorsAreContent: without admin_content an operator sees that a task has failed, and not in which words.
func TestErrorsAreContent(t *testing.T) {
	for status, hidden := range map[string]bool{"failed": true, "tool_error": true, "unknown": false, "cancelled": false, "": false} {
		for _, content := range []bool{true, false} {
			one := Task{Status: status, Message: "secret"}
			New(Options{Content: content}).hideError(&one)
			if shown := one.Message != ""; shown != (content || !hidden) {
				t.Errorf("%q, content %t: shown %t", status, content, shown)
			}
		}
	}
}

// Where nobody can sign in, nothing is there, and the answer says what is missing.
func TestOff(t *testing.T) {
	s := &source{}
	h := New(Options{Source: s})
	for _, p := range append(paths(), [2]string{"GET", "/console/"}, [2]string{"GET", "/openapi.json"}) {
		if w := serve(h, request(p[0], p[1], "Authorization", signed)); w.Code != 403 || !strings.Contains(w.Body.String(), "admin_auth") || s.asked > 0 {
			t.Errorf("%s: %d %s", p, w.Code, w.Body)
		}
	}
}

// Behind a proxy that signs people in, a page elsewhere can have a browser send requests in their name.
func TestTrustedHeader(t *testing.T) {
	s := &source{}
	h := New(Options{Source: s, Ambient: true, Method: methodOf(t, config.Auth{TrustedHeader: &config.TrustedHeader{Name: "X-User", From: []string{"192.0.2.1"}}})})
	cancel := Base + "/tasks/" + theTask + "/cancel"
	for _, c := range []struct {
		method, path string
		headers      []string
		status       int
	}{
		{"GET", Base + "/tasks", []string{"X-User", "ann"}, 200},
		{"GET", Base + "/tasks", nil, 403},
		{"POST", cancel, []string{"X-User", "ann"}, 403},
		{"POST", cancel, []string{"X-User", "ann", "Sec-Fetch-Site", "same-origin"}, 403},
		{"POST", cancel, []string{"X-User", "ann", "Origin", "https://evil.example"}, 403},
		{"POST", cancel, []string{"X-User", "ann", "Origin", "https://gate.example:9090", "Sec-Fetch-Site", "cross-site"}, 403},
		{"POST", cancel, []string{"X-User", "ann", "Origin", "https://gate.example:9090"}, 200},
	} {
		if w := serve(h, request(c.method, c.path, c.headers...)); w.Code != c.status {
			t.Errorf("%s %v: %d %s", c.path, c.headers, w.Code, w.Body)
		}
	}
	stranger := request("GET", Base+"/tasks", "X-User", "ann")
	stranger.RemoteAddr = "198.51.100.7:1000"
	if w := serve(h, stranger); w.Code != 403 {
		t.Errorf("a stranger with the header: %d", w.Code)
	}
}

// The parameters of a list of tasks reach the source, and a slip in one is no query for everything.
func TestQueries(t *testing.T) {
	now := time.Unix(1000, 0)
	v, _ := url.ParseQuery("upstream=u&tool=t&status=working&status=failed&principal=&replica=r&id=AB&older_than=10s&newer_than=1m&ended_within=5s&order=oldest&limit=7&cursor=c")
	q, err := queryOf(v, now)
	empty := ""
	want := shim.Query{
		Upstream: "u", Tool: "t", States: []shim.State{"working", "failed"}, Owner: &empty, Replica: "r", Prefix: "ab",
		Before: now.Add(-10 * time.Second), After: now.Add(-time.Minute), EndedAfter: now.Add(-5 * time.Second), Oldest: true, Limit: 7, Cursor: "c",
	}
	if err != nil || jsonOf(t, q) != jsonOf(t, want) {
		t.Errorf("%v %s", err, jsonOf(t, q))
	}
	for _, bad := range []string{"x=1", "limit=0", "limit=501", "limit=x", "status=done", "outcome=unknown", "ended_within=x", "order=up", "older_than=x", "newer_than=-1s", "tool=a&tool=b"} {
		v, _ := url.ParseQuery(bad)
		if _, err := queryOf(v, now); err == nil {
			t.Errorf("%s is taken", bad)
		}
	}
	if _, err := queryOf(url.Values{"status": {"lost"}}, now); err == nil || !strings.HasSuffix(err.Error(), "queued, working, input_required, completed, tool_error, failed, cancelled, unknown") {
		t.Errorf("status=lost: %v", err)
	}
	if q, err := queryOf(nil, now); err != nil || q.Limit != 100 || q.Owner != nil {
		t.Errorf("%+v %v", q, err)
	}
}

func jsonOf(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// A cancellation is in the audit log with who made it; content is shown where that is on.
func TestWhoDidIt(t *testing.T) {
	var log bytes.Buffer
	s := &source{}
	h := New(Options{Source: s, Method: methodOf(t, keys), Content: true, Audit: slog.New(slog.NewJSONHandler(&log, nil))})
	serve(h, request("POST", Base+"/tasks/"+theTask+"/cancel", "Authorization", signed))
	var record map[string]any
	if err := json.Unmarshal(log.Bytes(), &record); err != nil {
		t.Fatal(err, log.String())
	}
	if record["principal"] != "ann" || record["task"] != theTask || record["owner"] != "alice" || record["upstream"] != "up" || s.by != "ann" {
		t.Errorf("%v by %s", record, s.by)
	}
	log.Reset()
	s.err = shim.ErrFinal
	serve(h, request("POST", Base+"/tasks/"+theTask+"/cancel", "Authorization", signed))
	if log.Len() > 0 {
		t.Errorf("nothing was cancelled: %s", log.String())
	}
	if serve(h, request("GET", Base+"/questions", "Authorization", signed)); !s.content {
		t.Error("content is not shown")
	}
}

// The console is served to everybody where the interface is on, for reading alone.
func TestConsoleFiles(t *testing.T) {
	h := New(Options{Source: &source{}, Method: methodOf(t, keys)})
	w := serve(h, request("GET", "/console/", "Sec-Fetch-Site", "cross-site")) // somebody has followed a link
	if w.Code != 200 || !strings.HasPrefix(w.Header().Get("Content-Type"), "text/html") || w.Header().Get("Content-Security-Policy") != policy {
		t.Errorf("%d %v", w.Code, w.Header())
	}
	for _, p := range [][2]string{{"POST", "/console/"}, {"GET", "/console/../handler.go"}, {"GET", "/console/nothing"}} {
		if w := serve(h, request(p[0], p[1])); w.Code < 400 {
			t.Errorf("%s: %d", p, w.Code)
		}
	}
}

// A stream of changes begins with one, merges those that come close together, and ends with its reader.
func TestChanges(t *testing.T) {
	web := httptest.NewServer(New(Options{Source: &source{}, Method: methodOf(t, keys)}))
	t.Cleanup(web.Close)
	ctx, stop := context.WithCancel(t.Context())
	r, err := http.NewRequestWithContext(ctx, "GET", web.URL+Base+"/changes", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", signed)
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	const event = "event: change\ndata: {}\n\n"
	begun, both := time.Now(), make([]byte, 2*len(event))
	if _, err := io.ReadFull(resp.Body, both); err != nil || string(both) != event+event {
		t.Errorf("%q %v", both, err)
	}
	if d := time.Since(begun); d < changesEvery/2 {
		t.Errorf("two events within %v", d)
	}
	stop()
	if _, err := io.ReadAll(resp.Body); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// What clients and servers choose is cut in lists.
func TestLongTexts(t *testing.T) {
	long := strings.Repeat("é", 4<<20)
	got := taskOf(shim.Task{Tool: long, StatusMessage: long, Owner: long})
	for _, text := range []string{got.Tool, got.Message, got.Principal} {
		if want := strings.Repeat("é", maxText/2) + "…"; text != want {
			t.Errorf("%d bytes", len(text))
		}
	}
	if short := cutText("short"); short != "short" {
		t.Error(short)
	}
}
