package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"taskgate/gateway/config"
	"taskgate/internal/budget"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/wiretest"
)

// bulky is a server of 2026-07-28 whose results have a size. How they come is the name of the
// tool.
type bulky struct {
	*httptest.Server
	text  string       // of each result
	seen  func()       // at each call
	calls atomic.Int64 // that are on their way
}

const (
	asJSON    = "json"   // with Content-Length
	asChunks  = "chunks" // without
	asAnEvent = "event"  // of a stream
	asFew     = "few"    // a small one
)

func newBulky(t testing.TB, size int) *bulky {
	const line = `a line with \"quotes\"\n`
	b := &bulky{text: strings.Repeat(line, size/len(line)), seen: func() {}}
	b.Server = httptest.NewServer(http.HandlerFunc(b.serve))
	t.Cleanup(b.Close)
	return b
}

func (b *bulky) serve(w http.ResponseWriter, r *http.Request) {
	var q struct {
		ID     json.RawMessage
		Method string
		Params struct{ Name string }
	}
	if err := json.NewDecoder(r.Body).Decode(&q); err != nil {
		return
	}
	begin, end := `{"jsonrpc":"2.0","id":`+string(q.ID)+`,"result":{"resultType":"complete",`, `}}`
	if members := map[string]string{
		"server/discover": `"supportedVersions":["2026-07-28"],"capabilities":{"tools":{}}`, "tools/list": `"tools":[{"name":"` + asJSON + `","inputSchema":{"type":"object"}}]`,
	}[q.Method]; members != "" {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, begin+members+end)
		return
	}
	b.calls.Add(1)
	defer b.calls.Add(-1)
	b.seen()
	text := b.text
	switch q.Params.Name {
	case asJSON:
		w.Header().Set("Content-Length", strconv.Itoa(len(begin)+len(text)+len(`"content":[{"type":"text","text":""}]`)+len(end)))
	case asAnEvent:
		begin, end = "data: "+begin, end+"\n\n"
	case asFew:
		text = "done"
	}
	kind := "application/json"
	if q.Params.Name == asAnEvent {
		kind = "text/event-stream"
	}
	w.Header().Set("Content-Type", kind)
	for _, part := range []string{begin, `"content":[{"type":"text","text":"`, text, `"}]`, end} {
		_, _ = io.WriteString(w, part) // a gateway that has gone is no concern of this server
	}
}

// bound lets the gateway hold few bytes: those of the largest call, and a number of times
// as many.
func bound(body, result config.Size, times int) func(*config.Config) {
	return func(c *config.Config) {
		c.MaxBody = body
		c.Upstreams[0].MaxResult = result
		c.Upstreams[0].Defaults.Tasks = config.TasksNever
		c.MaxBytesInFlight = config.Size(times) * c.LargestCall()
	}
}

// within checks that no more is held than may be.
func (r *running) within() {
	if held := r.s.budget.Held(); held > int64(r.s.config.MaxBytesInFlight) {
		r.t.Errorf("%d bytes are held of %d", held, r.s.config.MaxBytesInFlight)
	}
}

func (r *running) idle() bool { return r.s.budget.Held() == 0 && r.s.budget.Waiting() == 0 }

// send sends a call on a connection of its own. arguments of that length go with it.
func (r *running) send(tool string, padding int) (net.Conn, error) {
	return r.sendAs("", tool, padding)
}

// sendAs is send with a key.
func (r *running) sendAs(key, tool string, padding int) (net.Conn, error) {
	conn, err := net.Dial("tcp", r.s.listener.Addr().String())
	if err != nil {
		return nil, err
	}
	body := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"` + tool + `","arguments":{"pad":"` + strings.Repeat("x", padding) + `"},"_meta":{` +
		`"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}`
	_, err = fmt.Fprintf(conn, "POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nAccept: application/json, text/event-stream\r\n"+
		"Authorization: Bearer %s\r\nMcp-Protocol-Version: 2026-07-28\r\nMcp-Method: tools/call\r\nMcp-Name: %s\r\nContent-Length: %d\r\n\r\n%s", key, tool, len(body), body)
	return conn, err
}

// answered reads an answer and checks that it is a whole result with so much in it.
func answered(conn net.Conn, least int) error {
	defer conn.Close()
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && (resp.StatusCode != http.StatusOK || len(body) < least || !strings.Contains(string(body), `"content":[`) || !strings.HasSuffix(strings.TrimSpace(string(body)), "}")) {
		err = fmt.Errorf("status %d, %d bytes: %.300s", resp.StatusCode, len(body), body)
	}
	return err
}

// TestLargeCallsAtOnce: of 20 calls of 256 KiB at once as many are on their way as there is
// room for. The others wait, and are served in the end.
func TestLargeCallsAtOnce(t *testing.T) {
	up := newBulky(t, 0)
	const size, calls = 256 << 10, 20
	r := runServer(t, up.URL, bound(size, size, 4))
	enough := make(chan struct{})
	goOn := sync.OnceFunc(func() { close(enough) })
	t.Cleanup(goOn)
	up.seen = func() {
		<-enough
		r.within()
		if room := int64(r.s.config.MaxBytesInFlight) / size; up.calls.Load() > room {
			t.Errorf("%d calls are on their way, and there is room for %d", up.calls.Load(), room)
		}
	}
	var all sync.WaitGroup
	for range calls {
		all.Go(func() {
			conn, err := r.send(asFew, size-1024)
			if err == nil {
				err = answered(conn, 1)
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	r.until("full", func() bool { r.within(); return r.s.budget.Waiting() >= calls-12 })
	goOn()
	all.Wait()
	r.until("idle", r.idle)
}

// TestLongWaitsForItsTurn: while the gateway goes through long messages of a caller, another one of
// the same caller waits. Its short ones do not, and neither does a long one of somebody else.
func TestLongWaitsForItsTurn(t *testing.T) {
	up := newBulky(t, 0)
	var seen atomic.Int64
	up.seen = func() { seen.Add(1) }
	r := runServer(t, up.URL, func(c *config.Config) {
		bound(4*config.MiB, config.MiB, 8)(c)
		wiretest.WithKeys(c)
	})
	call := func(key string, padding int) net.Conn {
		conn, err := r.sendAs(key, asFew, padding)
		must(t, err)
		return conn
	}
	begun, goOn := make(chan struct{}), make(chan struct{})
	end := sync.OnceFunc(func() { close(goOn) })
	t.Cleanup(end)
	turns := max(1, runtime.GOMAXPROCS(0)/2)
	for range turns {
		go r.s.budget.HoldOf("alice").InTurn(budget.Long, func() {
			begun <- struct{}{}
			<-goOn
		})
	}
	for range turns {
		<-begun
	}
	long := call(wiretest.AliceKey, 1<<20)
	r.until("the long call is read", func() bool { return r.s.budget.Held() > 1<<20 })
	const short = 20
	for range short {
		must(t, answered(call(wiretest.AliceKey, 0), 1))
	}
	must(t, answered(call(wiretest.BobKey, 1<<20), 1))
	if n := seen.Load(); n != short+1 {
		t.Errorf("the server has seen %d calls, want the %d short ones and that of the other", n, short)
	}
	end()
	if err := answered(long, 1); err != nil {
		t.Error(err)
	}
}

// TestUnreadResults: 12 clients ask for 4 MiB and do not read. As many results are held as
// there is room for. Who leaves gives its bytes back, and who reads is served.
func TestUnreadResults(t *testing.T) {
	t.Parallel()
	const size = 4 << 20 // more than the buffers of a connection take
	up := newBulky(t, size)
	for _, tool := range []string{asAnEvent, asJSON, asChunks} {
		r := runServer(t, up.URL, bound(config.MiB, 5*config.MiB, 3))
		up.seen = r.within
		var conns []net.Conn
		for range 12 {
			conn, err := r.send(tool, 0)
			must(t, err)
			conns = append(conns, conn)
		}
		// Each holds its request, which is not counted, and an answer, or waits for it.
		r.until("full", func() bool { r.within(); return r.s.budget.Waiting() >= 8 })
		for _, conn := range conns[4:] {
			conn.Close()
		}
		var all sync.WaitGroup
		for _, conn := range conns[:4] {
			all.Go(func() {
				if err := answered(conn, size-100); err != nil {
					t.Errorf("%s: %v", tool, err)
				}
				r.within()
			})
		}
		all.Wait()
		r.until("idle", r.idle)
		r.ends()
	}
}

// TestUnreadIsCut: a client that does not read is let go of after a while, and who
// waited for its bytes gets them.
func TestUnreadIsCut(t *testing.T) {
	t.Parallel()
	const size = 4 << 20 // more than the buffers of a connection take
	up := newBulky(t, size)
	r := runServer(t, up.URL, bound(config.MiB, 5*config.MiB, 2), func(s *server) { s.config.ClientTimeout = time.Second })
	for range 2 {
		conn, err := r.send(asJSON, 0)
		must(t, err)
		defer conn.Close()
	}
	r.until("full", func() bool { return r.s.budget.Held() > 2*size })
	conn, err := r.send(asJSON, 0)
	if err == nil {
		err = answered(conn, size-100)
	}
	if err != nil {
		t.Error(err)
	}
	r.until("idle", r.idle)
}

// TestNoRoomInTime: a call for which there is no room in time is refused, before or after it
// was sent.
func TestNoRoomInTime(t *testing.T) {
	t.Parallel()
	const size = 4 << 20 // more than the buffers of a connection take
	up := newBulky(t, size)
	r := runServer(t, up.URL, bound(config.MiB, 5*config.MiB, 2), func(s *server) { s.bytesWait = 10 * time.Millisecond })
	for range 2 {
		conn, err := r.send(asJSON, 0)
		must(t, err)
		defer conn.Close()
	}
	r.until("full", func() bool { return r.s.budget.Held() > 2*size })
	for padding, want := range map[int]string{
		0:         `200 {"jsonrpc":"2.0","id":1,"error":{"code":-32603,"message":"too many bytes in flight to take the answer of the server"}}`,
		900 << 10: `503 {"jsonrpc":"2.0","error":{"code":-32603,"message":"too many bytes in flight","data":{"retryAfterMs":1000}}}`,
	} {
		tool := asJSON
		if padding > 0 {
			r.fill()
		}
		conn, err := r.send(tool, padding)
		must(t, err)
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		must(t, err)
		body, err := io.ReadAll(resp.Body)
		if got := fmt.Sprintf("%d %s", resp.StatusCode, body); err != nil || got != want {
			t.Errorf("%s, %v", got, err)
		}
		conn.Close()
	}
	page := r.scrape("text/plain")
	if n := refusalsIn([]byte(page))["max_bytes_in_flight"]; n != 2 {
		t.Errorf("%d refusals are counted", n)
	}
}

// fill takes what is left of the budget.
func (r *running) fill() {
	h := r.s.budget.Hold()
	r.t.Cleanup(h.Release)
	for n := int64(1 << 20); n > 0; n /= 2 {
		var err error
		for err == nil {
			ctx, cancel := context.WithCancelCause(context.Background())
			cancel(errors.New("no room"))
			err = h.Take(ctx, n)
		}
	}
}

// TestLargeResultIsHeldOnce: a result of 1 MiB is held once, in a buffer that serves the next one, too. With the race
// detector a pool forgets a quarter of its buffers.
func TestLargeResultIsHeldOnce(t *testing.T) {
	const size, calls = 1 << 20, 20
	r := runServer(t, newBulky(t, size).URL, bound(config.MiB, 2*config.MiB, 3))
	call := func() {
		conn, err := r.send(asJSON, 0)
		must(t, err)
		defer conn.Close()
		if n, err := io.CopyN(io.Discard, conn, size); err != nil {
			t.Fatal(n, err)
		}
	}
	call() // the server is asked what it is
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range calls {
		call()
	}
	runtime.ReadMemStats(&after)
	if each := (after.TotalAlloc - before.TotalAlloc) / calls; each > size*3/4 {
		t.Errorf("%d bytes are allocated for a result of %d", each, size)
	}
}

// TestListenerGivesBack: a client that listens to its tasks hears the end of each, though their results are more
// together than may be held at a time.
func TestListenerGivesBack(t *testing.T) {
	const size, tasks = 256 << 10, 20
	r := runServer(t, newBulky(t, size).URL, func(c *config.Config) {
		bound(size, 2*size, 3)(c)
		c.Upstreams[0].Defaults.Tasks = config.TasksAlways
	})
	var ids []string
	for range tasks {
		_, answer := r.post("tools/call", asJSON)
		id, ok := jsonrpc.GetString(json.RawMessage(answer), "result", "taskId")
		if !ok {
			t.Fatal(answer)
		}
		ids = append(ids, id)
	}
	done := make(chan string, 1)
	go func() { // it ends with the last task
		_, heard := r.modern("", "subscriptions/listen", `"notifications":{"taskIds":["`+strings.Join(ids, `","`)+`"]},`)
		done <- heard
	}()
	if n := strings.Count(wiretest.Await(t, done, "the end of all tasks"), `"status":"completed"`); n != tasks {
		t.Errorf("heard the end of %d tasks of %d", n, tasks)
	}
	r.until("idle", r.idle)
}
