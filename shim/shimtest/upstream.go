package shimtest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"taskgate/shim"
)

// Peer is a server with the tools that the suite calls, and the upstream client that reaches
// it. The tools are, with their arguments:
//
//	echo  {key, text}  answers with text
//	fail  {key}        answers with isError
//	steps {key, n}     sends n progress notifications with messages "1" … "n", then answers "done"
//	wait  {key}        answers only when it is cancelled
//	ask   {key}        elicits {name} and answers with it, or with isError if it cannot
//	log   {key}        logs at debug and at error, then answers "done"
//
// Each records under key that it began, and wait that it was cancelled.
type Peer struct {
	Upstream  shim.Upstream
	Runs      func(key string) int
	Cancelled func(key string) int

	// Asks says that tools ask on the stream of their call, AsksAside that they ask on
	// another one of the session; Relays that they ask by an InputRequiredResult;
	// Silent that progress and logs cannot come.
	Asks, AsksAside, Relays, Silent bool
	// Detaches says that a call goes on when its connection is gone, Deaf that a
	// cancellation does not reach it either.
	Detaches, Deaf bool
	// Resumes says that a call that was let go of can be resumed once it has begun.
	Resumes bool
	// Change makes the server say that its tools have changed; nil if it cannot be
	// listened to.
	Change func()
}

// Dial makes a fresh peer that ends with the test.
type Dial func(t *testing.T) *Peer

// Asking are capabilities of a client that can be asked by a form.
var Asking = json.RawMessage(`{"elicitation":{}}`)

// Upstream checks that an upstream client keeps the contract of shim.Upstream.
func Upstream(t *testing.T, dial Dial) {
	for _, c := range []struct {
		name string
		run  func(*testing.T, *Peer)
	}{
		{"Echo", testEcho}, {"ToolError", testToolError}, {"RPCError", testRPCError},
		{"Progress", testProgress}, {"Logs", testLogs}, {"CheckpointFirst", testCheckpointFirst},
		{"Cancel", testCancel}, {"Detach", testDetach}, {"EndedBefore", testEndedBefore},
		{"Ask", testAsk}, {"AskRefused", testAskRefused},
		{"Relay", testRelay}, {"Parallel", testParallel}, {"NotResumable", testNotResumable}, {"Resumable", testResumable}, {"Listen", testListen},
	} {
		t.Run(c.name, func(t *testing.T) { c.run(t, dial(t)) })
	}
}

// limit bounds each case.
const limit = 20 * time.Second

func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	return ctx
}

// Tool makes a tools/call with this key and further arguments in turn.
func Tool(name, key string, more ...any) shim.Request {
	args := map[string]any{"key": key}
	for i := 0; i+1 < len(more); i += 2 {
		args[more[i].(string)] = more[i+1]
	}
	params, err := json.Marshal(map[string]any{"name": name, "arguments": args})
	if err != nil {
		panic(err)
	}
	return shim.Request{Method: "tools/call", Name: name, Params: params}
}

// TextOf is the first text block of a CallToolResult.
func TextOf(t *testing.T, r shim.Reply) string {
	t.Helper()
	var res struct {
		Content []struct{ Text string } `json:"content"`
	}
	if err := json.Unmarshal(r.Result, &res); err != nil || len(res.Content) == 0 {
		t.Fatalf("no text in reply %+v (%v)", r, err)
	}
	return res.Content[0].Text
}

func once(t *testing.T, p *Peer, key string) {
	t.Helper()
	if n := p.Runs(key); n != 1 {
		t.Errorf("tool ran %d times, want once", n)
	}
}

func testEcho(t *testing.T, p *Peer) {
	var s Sink
	r, err := p.Upstream.Call(within(t), Tool("echo", "k", "text", "hallo"), &s)
	if err != nil || r.Error != nil || r.IsError {
		t.Fatalf("reply %+v, %v", r, err)
	}
	if got := TextOf(t, r); got != "hallo" {
		t.Errorf("text %q", got)
	}
	once(t, p, "k")
	if len(s.Checkpoints()) == 0 {
		t.Error("no checkpoint before the call")
	}
}

func testToolError(t *testing.T, p *Peer) {
	r, err := p.Upstream.Call(within(t), Tool("fail", "k"), &Sink{})
	if err != nil || r.Error != nil || !r.IsError || r.Result == nil {
		t.Fatalf("reply %+v, %v", r, err)
	}
	once(t, p, "k")
}

func testRPCError(t *testing.T, p *Peer) {
	r, err := p.Upstream.Call(within(t), Tool("no_such_tool", "k"), &Sink{})
	if err != nil || r.Error == nil || r.Result != nil {
		t.Fatalf("reply %+v, %v, want a JSON-RPC error", r, err)
	}
	if r.Error.Code != -32602 {
		t.Errorf("code %d, want -32602", r.Error.Code)
	}
}

func testProgress(t *testing.T, p *Peer) {
	if p.Silent {
		t.Skip("the peer sends nothing before the answer")
	}
	var s Sink
	r, err := p.Upstream.Call(within(t), Tool("steps", "k", "n", 5), &s)
	if err != nil || TextOf(t, r) != "done" {
		t.Fatalf("reply %+v, %v", r, err)
	}
	got, _ := s.Heard()
	if len(got) != 5 {
		t.Fatalf("%d progress notifications, want 5: %+v", len(got), got)
	}
	for i, x := range got {
		if x.Message != fmt.Sprint(i+1) || x.Progress != float64(i+1) || x.Total != 5 || !json.Valid(x.Raw) {
			t.Errorf("progress %d: %+v", i, x)
		}
	}
	once(t, p, "k")
}

func testLogs(t *testing.T, p *Peer) {
	if p.Silent {
		t.Skip("the peer sends nothing before the answer")
	}
	req := Tool("log", "k")
	req.LogLevel = "warning"
	req.Session.Key = "somebody"
	var s Sink
	if _, err := p.Upstream.Call(within(t), req, &s); err != nil {
		t.Fatal(err)
	}
	_, logs := s.Heard()
	if len(logs) != 1 || logs[0].Level != "error" || !json.Valid(logs[0].Raw) {
		t.Errorf("logs %+v, want the one at error", logs)
	}
}

func testCheckpointFirst(t *testing.T, p *Peer) {
	down := errors.New("the store is down")
	s := Sink{OnCheckpoint: func(json.RawMessage) error { return down }}
	_, err := p.Upstream.Call(within(t), Tool("echo", "k", "text", "x"), &s)
	var ue *shim.UpstreamError
	if !errors.As(err, &ue) || !ue.Unsent || !errors.Is(err, down) {
		t.Fatalf("error %v, want an unsent UpstreamError around the sink's", err)
	}
	if n := p.Runs("k"); n != 0 {
		t.Errorf("tool ran %d times", n)
	}
}

// running calls wait and returns once it has begun.
func running(t *testing.T, p *Peer, ctx context.Context, key string) <-chan error {
	t.Helper()
	done := make(chan error, 1)
	go func() {
		_, err := p.Upstream.Call(ctx, Tool("wait", key), &Sink{})
		done <- err
	}()
	Eventually(t, func() bool { return p.Runs(key) == 1 })
	return done
}

func testCancel(t *testing.T, p *Peer) {
	why := errors.New("the user changed their mind")
	ctx, cancel := context.WithCancelCause(within(t))
	done := running(t, p, ctx, "k")
	cancel(why)
	if err := <-done; !errors.Is(err, why) {
		t.Errorf("error %v, want the cause", err)
	}
	if !p.Deaf {
		Eventually(t, func() bool { return p.Cancelled("k") == 1 })
	}
	once(t, p, "k")
}

func testDetach(t *testing.T, p *Peer) {
	if !p.Detaches {
		t.Skip("a lost connection ends the call at this peer")
	}
	ctx, cancel := context.WithCancelCause(within(t))
	done := running(t, p, ctx, "k")
	cancel(shim.ErrDetached)
	if err := <-done; !errors.Is(err, shim.ErrDetached) {
		t.Errorf("error %v, want ErrDetached", err)
	}
	// The peer hears of nothing: a later call is answered while the first still
	// waits.
	if _, err := p.Upstream.Call(within(t), Tool("echo", "k2", "text", "x"), &Sink{}); err != nil {
		t.Fatal(err)
	}
	if p.Cancelled("k") != 0 {
		t.Error("the detached call was cancelled")
	}
}

func testEndedBefore(t *testing.T, p *Peer) {
	ctx, cancel := context.WithCancel(within(t))
	cancel()
	if _, err := p.Upstream.Call(ctx, Tool("echo", "k", "text", "x"), &Sink{}); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	if n := p.Runs("k"); n != 0 {
		t.Errorf("tool ran %d times", n)
	}
}

func asking(key string) shim.Request {
	r := Tool("ask", key)
	r.Session = shim.Session{Key: "somebody", Capabilities: Asking}
	return r
}

// asked is asking by a caller who can be asked on whatever stream.
func asked(t *testing.T, p *Peer) shim.Request {
	t.Helper()
	if !p.Asks && !p.AsksAside {
		t.Skip("the peer does not ask before it answers")
	}
	r := asking("k")
	r.Rounds = p.AsksAside
	return r
}

func testAsk(t *testing.T, p *Peer) {
	req := asked(t, p)
	s := Sink{OnAsk: func(_ context.Context, q ...shim.Question) ([]shim.Answer, error) {
		out := make([]shim.Answer, len(q))
		for i := range q {
			out[i].Result = json.RawMessage(`{"action":"accept","content":{"name":"Ada"}}`)
		}
		return out, nil
	}}
	r, err := p.Upstream.Call(within(t), req, &s)
	if err != nil || TextOf(t, r) != "Ada" {
		t.Fatalf("reply %+v, %v", r, err)
	}
	q := s.Asked()
	if len(q) != 1 || q[0].Method != "elicitation/create" || q[0].Key == "" || !json.Valid(q[0].Params) {
		t.Errorf("questions %+v", q)
	}
	once(t, p, "k")
}

// A question that nobody answers, that nobody can be asked, or that is over a limit, is refused: the server hears of it,
// and the call goes on. Of the last two no client hears.
func testAskRefused(t *testing.T, p *Peer) {
	for name, c := range map[string]struct {
		change func(*shim.Request)
		asks   int
	}{
		"not answered": {func(*shim.Request) {}, 1},
		"undeclared":   {func(r *shim.Request) { r.Session = shim.Session{} }, 0},
		"too much":     {func(r *shim.Request) { r.Limits = shim.QuestionLimits{Bytes: 1} }, 0},
	} {
		req := asked(t, p)
		c.change(&req)
		var s Sink
		r, err := p.Upstream.Call(within(t), req, &s)
		if err != nil || !r.IsError {
			t.Fatalf("%s: reply %+v, %v, want the tool's own error", name, r, err)
		}
		if q := s.Asked(); len(q) != c.asks {
			t.Errorf("%s: a client was asked %+v", name, q)
		}
	}
}

func testRelay(t *testing.T, p *Peer) {
	if !p.Relays {
		t.Skip("the peer does not answer with questions")
	}
	req := asking("k")
	r, err := p.Upstream.Call(within(t), req, &Sink{})
	if err != nil || r.Error == nil || r.Error.Code != -32603 {
		t.Fatalf("without Relay: reply %+v, %v, want -32603", r, err)
	}
	req.Relay = true
	r, err = p.Upstream.Call(within(t), req, &Sink{})
	if err != nil || !r.InputRequired || !strings.Contains(string(r.Result), "inputRequests") {
		t.Fatalf("with Relay: reply %+v, %v", r, err)
	}
}

func testParallel(t *testing.T, p *Peer) {
	var wg sync.WaitGroup
	ctx, calls := within(t), Rounds(50)
	for i := range calls {
		wg.Go(func() {
			text := fmt.Sprint("text ", i)
			r, err := p.Upstream.Call(ctx, Tool("echo", fmt.Sprint("k", i), "text", text), &Sink{})
			if err != nil || r.Error != nil {
				t.Errorf("call %d: %+v, %v", i, r, err)
				return
			}
			if got := TextOf(t, r); got != text {
				t.Errorf("call %d got %q", i, got)
			}
		})
	}
	wg.Wait()
	for i := range calls {
		once(t, p, fmt.Sprint("k", i))
	}
}

func testNotResumable(t *testing.T, p *Peer) {
	for _, cp := range []string{``, `{}`, `nonsense`, `{"era":"modern","id":"x","last":"y"}`} {
		if _, err := p.Upstream.Resume(within(t), Tool("echo", "k", "text", "x"), json.RawMessage(cp), &Sink{}); !errors.Is(err, shim.ErrNotResumable) {
			t.Errorf("checkpoint %s: %v, want ErrNotResumable", cp, err)
		}
	}
	if n := p.Runs("k"); n != 0 {
		t.Errorf("tool ran %d times", n)
	}
}

func testListen(t *testing.T, p *Peer) {
	if p.Change == nil {
		t.Skip("the peer cannot be listened to")
	}
	ctx, cancel := context.WithCancel(within(t))
	agreed := make(chan shim.Filter, 1)
	heard := make(chan shim.Notification, 16)
	done := make(chan error, 1)
	go func() {
		done <- p.Upstream.Listen(ctx, shim.Session{Key: "somebody"}, shim.Filter{ToolsListChanged: true},
			func(f shim.Filter) { agreed <- f }, func(n shim.Notification) { heard <- n })
	}()
	select {
	case f := <-agreed:
		if !f.ToolsListChanged || f.PromptsListChanged || f.Log {
			t.Errorf("agreed to %+v", f)
		}
	case err := <-done:
		t.Fatalf("Listen ended: %v", err)
	}
	p.Change()
	if n := <-heard; n.Method != "notifications/tools/list_changed" {
		t.Errorf("heard %+v", n)
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("Listen ended with %v", err)
	}
}

// Eventually waits until a condition holds, and fails the test if it does not
// within the limit of a case.
func Eventually(t testing.TB, cond func() bool) {
	t.Helper()
	deadline := time.NewTimer(limit)
	defer deadline.Stop()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatal("condition never held")
		}
	}
}
