package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"

	"taskgate/gateway/config"
)

// patience is how long a real process part may take before a test gives up.
const patience = 20 * time.Second

// logged collects what a server logs.
type logged struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// running is a gateway process in this one.
type running struct {
	t    *testing.T
	s    *server
	log  *logged
	stop context.CancelFunc // the first SIGTERM
	done chan error
}

func runServer(t *testing.T, url string, change func(*config.Config), tune ...func(*server)) *running {
	t.Helper()
	c := config.FromFlags(url)
	c.Listen, c.Admin, c.DrainDelay, c.Store = "127.0.0.1:0", "127.0.0.1:0", 0, config.StoreEmbedded
	if change != nil {
		change(c)
	}
	return runConfig(t, c, tune...)
}

// runConfig runs a gateway until the test ends, or before.
func runConfig(t *testing.T, c *config.Config, tune ...func(*server)) *running {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	r := &running{t: t, log: &logged{}, stop: stop, done: make(chan error, 1)}
	r.s = newServer(c, r.log)
	for _, one := range tune {
		one(r.s)
	}
	if err := r.s.openServer(ctx); err != nil {
		stop()
		t.Fatal(err)
	}
	go func() { r.done <- r.s.serveUntilEnd(ctx); close(r.done) }()
	t.Cleanup(r.ends)
	return r
}

// ends stops the process, and waits for its end.
func (r *running) ends() {
	r.t.Helper()
	r.stop()
	select {
	case err := <-r.done:
		if err != nil {
			r.t.Error(err)
		}
	case <-time.After(patience):
		r.t.Fatal("it does not end")
	}
}

// until waits until something is so.
func (r *running) until(what string, so func() bool) {
	r.t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.After(patience); !so(); {
		select {
		case <-tick.C:
		case <-deadline:
			r.t.Fatalf("never: %s; %d bytes are held, %d wait\n%s", what, r.s.budget.Held(), r.s.budget.Waiting(), r.log)
		}
	}
}

// asOperator sends a request to the admin listener with a key, and returns the status and the body.
func (r *running) asOperator(method, path, key string, headers ...string) (int, []byte) {
	r.t.Helper()
	q, err := http.NewRequest(method, "http://"+r.s.admin.listener.Addr().String()+path, nil)
	must(r.t, err)
	if key != "" {
		q.Header.Set("Authorization", "Bearer "+key)
	}
	for i := 0; i < len(headers); i += 2 {
		q.Header.Set(headers[i], headers[i+1])
		if headers[i] == "Host" {
			q.Host = headers[i+1]
		}
	}
	resp, err := http.DefaultClient.Do(q)
	must(r.t, err)
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	must(r.t, err)
	return resp.StatusCode, b
}

// ready asks the admin listener.
func (r *running) ready() (int, report) {
	r.t.Helper()
	status, body := r.asOperator("GET", "/readyz", "")
	var got report
	if err := json.Unmarshal(body, &got); err != nil {
		r.t.Error(err)
	}
	return status, got
}

// becomes asks until the answer has this status.
func (r *running) becomes(status int) (got report) {
	r.t.Helper()
	r.until(fmt.Sprint("ready with status ", status), func() bool {
		var now int
		now, got = r.ready()
		return now == status
	})
	return got
}

// scrape reads /metrics, in the format that is asked for.
func (r *running) scrape(format expfmt.Format) string {
	r.t.Helper()
	status, page := r.asOperator("GET", "/metrics", "", "Accept", string(format))
	if status != http.StatusOK {
		r.t.Fatalf("%d: %s", status, page)
	}
	return string(page)
}

// shows scrapes until the page has this: a request is measured once its client has the answer.
func (r *running) shows(format expfmt.Format, want string) (text string) {
	r.t.Helper()
	r.until(want, func() bool {
		text = r.scrape(format)
		return regexp.MustCompile(want).MatchString(text)
	})
	return text
}

// request sends a message to the public listener, with a key or token if it is not "". Without an answer the status is 0.
func (r *running) request(path, key, body string, header ...string) (status int, text string, h http.Header) {
	q, err := http.NewRequest("POST", "http://"+r.s.listener.Addr().String()+path, strings.NewReader(body))
	if err != nil {
		return 0, err.Error(), nil
	}
	q.Header.Set("Content-Type", "application/json")
	q.Header.Set("Accept", "application/json, text/event-stream")
	if key != "" {
		q.Header.Set("Authorization", "Bearer "+key)
	}
	for i := 0; i+1 < len(header); i += 2 {
		q.Header.Set(header[i], header[i+1])
	}
	resp, err := http.DefaultClient.Do(q)
	if err != nil {
		return 0, err.Error(), nil
	}
	defer resp.Body.Close()
	all, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, string(all), resp.Header
}

// modern sends a request of 2026 to an upstream at /mcp. params end with a comma.
func (r *running) modern(key, method, params string) (status int, text string) {
	return r.modernAt("/mcp", key, method, params)
}

func (r *running) modernAt(path, key, method, params string) (status int, text string) {
	body := `{"jsonrpc":"2.0","id":1,"method":"` + method + `","params":{` + params + `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28",` +
		`"io.modelcontextprotocol/clientCapabilities":{"elicitation":{"form":{}},"extensions":{"io.modelcontextprotocol/tasks":{}}}}}}`
	header := []string{"Mcp-Protocol-Version", "2026-07-28", "Mcp-Method", method}
	for _, name := range []string{"name", "taskId"} {
		if _, rest, ok := strings.Cut(params, `"`+name+`":"`); ok {
			value, _, _ := strings.Cut(rest, `"`)
			header = append(header, "Mcp-Name", value)
		}
	}
	status, text, _ = r.request(path, key, body, header...)
	return status, text
}

// ask sends a modern request about a tool or a task.
func (r *running) ask(path, key, method, name string) (int, string) {
	return r.modernAt(path, key, method, `"name":"`+name+`","arguments":{},"taskId":"`+name+`",`)
}

// post is ask of anybody, at /mcp.
func (r *running) post(method, name string) (int, string) { return r.ask("/mcp", "", method, name) }

// named runs a modern server that answers with its name and a header of the request. A call of the tool
// "slow" waits until it is let go.
func named(t *testing.T, name string) (url string, called <-chan struct{}, letGo func()) {
	t.Helper()
	begun, free := make(chan struct{}, 100), make(chan struct{})
	web := httptest.NewServer(namedServer(name, begun, free))
	letGo = sync.OnceFunc(func() { close(free) })
	t.Cleanup(func() { letGo(); web.Close() })
	return web.URL + "/mcp", begun, letGo
}

func namedServer(name string, begun chan<- struct{}, free <-chan struct{}) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var q struct {
			ID     json.RawMessage `json:"id"`
			Method string          `json:"method"`
			Params struct{ Name string }
		}
		_ = json.NewDecoder(r.Body).Decode(&q) // of a DELETE or GET there is nothing to be read
		result := `{"resultType":"complete","content":[{"type":"text","text":"` + name + " " + r.Header.Get("X-Secret") + `"}]}`
		switch {
		case q.Method == "server/discover":
			result = `{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{"tools":{}}}`
		case q.Method == "tools/list":
			result = `{"resultType":"complete","tools":[{"name":"work","inputSchema":{"type":"object"}},{"name":"slow","inputSchema":{"type":"object"}}]}`
		case q.Params.Name == "slow":
			begun <- struct{}{}
			select {
			case <-free:
			case <-r.Context().Done():
			}
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"jsonrpc":"2.0","id":`+string(q.ID)+`,"result":`+result+`}`)
	})
}
