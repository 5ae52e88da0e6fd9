package attack

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/procfs"

	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/internal/proc"
	"taskgate/internal/programtest"
	"taskgate/internal/wiretest"
	"taskgate/shim/shimtest/fake"
)

const malloryKey, honestKey = "mallory-0123456789abcdef", "honest-0123456789abcdef"

// patience is how long a message waits for its answer: a call may be left to block.
const patience = 30 * time.Second

// world is a gateway with the memory limit of a container of 1 GiB, and its servers.
type world struct {
	t       *testing.T
	addr    string
	gateway *proc.Process
	client  *http.Client
	close   []func() // what the attack holds open
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, addr: programtest.FreeAddr(t), client: &http.Client{Timeout: patience, Transport: &http.Transport{MaxIdleConnsPerHost: 100}}}
	t.Cleanup(w.client.CloseIdleConnections)
	hash := func(key string) string { sum := sha256.Sum256([]byte(key)); return hex.EncodeToString(sum[:]) }
	good, legacy, evil := fake.New(t, fake.Modern), fake.New(t, fake.Stateful), fake.New(t, fake.Modern)
	for _, s := range []*fake.Server{good, legacy} {
		s.Tool("echo", fake.Text("done"))
		s.Tool("hang", fake.Hanging(nil))
		s.Tool("mirrors", fake.Text("done"))
	}
	good.Tool("large", fake.Text(strings.Repeat("x", keptBytes)))
	legacy.Tool("tells", tells)
	legacy.Tool("asks", asks)
	var mirrored []string
	for i := range 64 {
		mirrored = append(mirrored, fmt.Sprintf(`"p%d":{"type":"string","x-mcp-header":"P%d"}`, i, i))
	}
	good.Schema("mirrors", `{"type":"object","properties":{`+strings.Join(mirrored, ",")+`}}`)
	evil.Tool("nests", fake.Text("done"))
	evil.Schema("nests", strings.Repeat(`{"type":"object","properties":{"a":`, 95)+`{"description":"\\n","enum":[`+strings.Repeat("0,", 2<<20)+`0]}`+strings.Repeat("}}", 95))
	file := filepath.Join(t.TempDir(), "taskgate.yaml")
	text := fmt.Sprintf("listen: %[1]s\npublic_url: http://%[1]s\nstore: embedded\nauth: {keys: [\"mallory:%[2]s\", \"honest:%[3]s\"]}\nupstreams:\n", w.addr, hash(malloryKey), hash(honestKey))
	for path, s := range map[string]*fake.Server{"mod": good, "leg": legacy, "evil": evil} {
		text += fmt.Sprintf("  - {name: %s, path: /%s, url: %q}\n", path, path, s.URL)
	}
	text += fmt.Sprintf("  - {name: open, path: /open, url: %q, auth: {anonymous: on}}\n  - {name: passes, path: /passes, url: %q, auth: {passthrough: {}}}\n", legacy.URL, good.URL)
	text += fmt.Sprintf("  - {name: kept, path: /kept, url: %q, defaults: {tasks: always}}\n  - {name: slow, path: /slow, url: %q, defaults: {tasks: always}}\n", good.URL, legacy.URL)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	w.gateway = programtest.Start(t, proc.Command{Name: "taskgate", Path: filepath.Join(bin, "taskgate"), Args: []string{"serve", "--config", file}, Env: []string{"GOMEMLIMIT=922MiB"}}, 10*time.Second, w.addr)
	return w
}

// tells is a tool that says what is about as long as a result of keptBytes, a piece at a time, and then goes on.
func tells(x *fake.Exchange) {
	x.Run()
	for i := range keptBytes / pieceBytes {
		x.Event(x.Progress(i, strings.Repeat("p", pieceBytes)))
		if i == 0 { // until the stream can be resumed
			select {
			case <-x.R.Context().Done():
			case <-time.After(300 * time.Millisecond):
			}
		}
	}
	if x.Arg("on") != "" {
		x.Hang()
	}
	x.Event(x.Result(`{"content":[]}`))
}

// asks is a tool that asks its client askedBytes, and goes on.
func asks(x *fake.Exchange) {
	x.Run()
	x.Ask(`"`+rand.Text()+`"`, "elicitation/create", `{"message":"`+strings.Repeat("x", askedBytes)+`","requestedSchema":{"type":"object","properties":{}}}`)
	x.Hang()
}

// post sends a message as somebody, and reads the answer, of so many bytes.
func (w *world) post(key string, m message) (status int, size int64, err error) {
	status, size, _, err = w.postIn("", key, m)
	return status, size, err
}

// postIn is post in a session, "" for none. It returns the session of the answer.
func (w *world) postIn(session, key string, m message) (status int, size int64, its string, err error) {
	r, err := http.NewRequestWithContext(w.t.Context(), http.MethodPost, "http://"+w.addr+m.path, strings.NewReader(m.body))
	if err != nil {
		return 0, 0, "", err
	}
	if r.Header.Set("Content-Type", mcp.TypeJSON); m.legacy {
		r.Header.Set("Accept", mcp.TypeAccept)
	} else if msg, err := jsonrpc.Parse([]byte(m.body)); err == nil {
		if wiretest.CorrectHeaders(r.Header, msg); len(r.Header.Get(mcp.HeaderName)) > 1<<10 {
			r.Header.Set(mcp.HeaderName, "short") // the header has a bound of its own
		}
	}
	if m.token != nil {
		key = m.token()
	}
	if key != "" {
		r.Header.Set("Authorization", "Bearer "+key)
	}
	if session != "" {
		r.Header.Set(mcp.HeaderSession, session)
	}
	resp, err := w.client.Do(r)
	if err != nil {
		return 0, 0, "", err
	}
	defer resp.Body.Close()
	size, err = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode, size, resp.Header.Get(mcp.HeaderSession), err
}

// calls is an attack of n messages, 16 at a time.
func calls(n int, compose func() message) func(w *world) sent {
	return func(w *world) sent {
		var all sync.WaitGroup
		m := compose()
		var next, received atomic.Int64
		for range min(n, 16) {
			all.Go(func() {
				for int(next.Add(1)) <= n {
					_, size, _ := w.post(malloryKey, m) // whatever it gets
					received.Add(size)
				}
			})
		}
		all.Wait()
		return sent{n, n*len(m.body) + int(received.Load())}
	}
}

// waiting is an attack of n calls that stay open until it is measured.
func waiting(n int, compose func() message) func(w *world) sent {
	return func(w *world) sent {
		m := compose()
		return heads(n, fmt.Sprintf("Authorization: Bearer %s\r\nAccept: application/json, text/event-stream\r\nContent-Type: application/json\r\nMcp-Protocol-Version: 2026-07-28\r\n"+
			"Mcp-Method: %s\r\nMcp-Name: hang\r\nContent-Length: %d\r\n\r\n", malloryKey, m.method(), len(m.body))+m.body)(w)
	}
}

// heads is an attack of n connections, each with the beginning of a request.
func heads(n int, text string) func(w *world) sent {
	return func(w *world) sent {
		for range n {
			c, err := net.Dial("tcp", w.addr)
			if err != nil {
				w.t.Error(err)
				break
			}
			w.close = append(w.close, func() { _ = c.Close() })
			_ = c.SetWriteDeadline(time.Now().Add(5 * time.Second))
			_, _ = io.WriteString(c, "POST /mod HTTP/1.1\r\nHost: "+w.addr+"\r\n"+text) // whatever happens to it
		}
		return sent{n, n * len(text)}
	}
}

// measured is what an attack did.
type measured struct {
	sent
	peak           int64 // bytes of memory, of the gateway
	cpu            time.Duration
	before, during time.Duration // the 99th percentile of an honest client's calls
}

func (m measured) cpuPerMB() time.Duration {
	return time.Duration(float64(m.cpu) / (float64(max(1, m.bytes)) / 1e6))
}

// measure has an honest client call before and during an attack on a gateway of its own.
func measure(t *testing.T, attack func(w *world) sent) (m measured) {
	t.Helper()
	w := newWorld(t)
	quick := modern("echo", "", "{}")
	call := func() time.Duration {
		begun := time.Now()
		if status, _, err := w.post(honestKey, quick); status != http.StatusOK {
			t.Errorf("an honest call: %d, %v", status, err)
		}
		return time.Since(begun)
	}
	var before, during []time.Duration
	for range 300 {
		before = append(before, call())
	}
	cpu := w.usage(&m.peak)
	done := make(chan struct{})
	go func() {
		defer close(done)
		m.sent = attack(w)
	}()
	for over := false; !over || len(during) < 300; {
		during = append(during, call())
		select {
		case <-done:
			over = true
		default:
		}
	}
	idle := time.Duration(len(during)) * w.perCall(call)
	m.cpu = max(0, w.usage(&m.peak)-cpu-idle)
	for _, f := range w.close {
		f()
	}
	m.before, m.during = p99(before), p99(during)
	select {
	case <-w.gateway.Done():
		t.Fatalf("the gateway has ended: %s", w.gateway.Output())
	default:
	}
	return m
}

// perCall is what an honest call costs the gateway.
func (w *world) perCall(call func() time.Duration) time.Duration {
	var peak int64
	cpu := w.usage(&peak)
	for range 200 {
		call()
	}
	return (w.usage(&peak) - cpu) / 200
}

// usage is the processor time that the gateway has used, and the most memory that it had.
func (w *world) usage(peak *int64) time.Duration {
	w.t.Helper()
	p, err := procfs.NewProc(w.gateway.PID())
	if err != nil {
		w.t.Fatal(err)
	}
	stat, err := p.Stat()
	if err != nil {
		w.t.Fatal(err)
	}
	status, err := p.NewStatus()
	if err != nil {
		w.t.Fatal(err)
	}
	*peak = int64(status.VmHWM)
	return time.Duration(stat.CPUTime() * float64(time.Second))
}

func p99(of []time.Duration) time.Duration {
	slices.Sort(of)
	return of[len(of)*99/100]
}
