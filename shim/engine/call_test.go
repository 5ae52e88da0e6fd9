package engine_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"taskgate/shim"
	"taskgate/shim/engine"
)

// bubble runs a test on a clock of its own, where hours take no time.
func bubble(t *testing.T, f func(t *testing.T, w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.close()
		f(t, w)
	})
}

// hours is a bubble in which much time goes by and no replica is lost: its gateways beat rarely, as each
// beat costs some scripts of the store.
func hours(t *testing.T, f func(t *testing.T, w *world)) {
	t.Helper()
	bubble(t, func(t *testing.T, w *world) {
		w.heartbeat = 10 * time.Minute
		f(t, w)
	})
}

// bubbleOf is a bubble with a name, and hoursOf one of hours.
func bubbleOf(t *testing.T, name string, f func(t *testing.T, w *world)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { bubble(t, f) })
}

func hoursOf(t *testing.T, name string, f func(t *testing.T, w *world)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { hours(t, f) })
}

// must ends the test at an error, and errorOf is the error beside a value that a test does not need.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func errorOf[T any](_ T, err error) error { return err }

// begin makes a call that is expected to become a task.
func begin(t *testing.T, s *engine.Shim, c shim.Call) shim.Task {
	t.Helper()
	got, err := s.Call(t.Context(), c)
	if err != nil {
		t.Fatalf("call: %v", err)
	}
	if got.Task == nil {
		t.Fatalf("call answered %s, want a task", got.Reply.Result)
	}
	return *got.Task
}

func read(t *testing.T, s *engine.Shim, id shim.ID) shim.Task {
	t.Helper()
	got, err := s.Get(t.Context(), anyone, "up", id)
	if err != nil {
		t.Fatalf("get: %v", err)
	}
	return got
}

// updateTask answers questions of anyone's task.
func updateTask(t *testing.T, s *engine.Shim, id shim.ID, answers map[string]json.RawMessage) {
	t.Helper()
	must(t, s.Update(t.Context(), anyone, "up", id, answers))
}

// answerTask answers one question with a result.
func answerTask(t *testing.T, s *engine.Shim, p shim.Principal, id shim.ID, key, result string) {
	t.Helper()
	must(t, s.Answer(t.Context(), p, "up", id, key, shim.Answer{Result: json.RawMessage(result)}))
}

// cancelTask cancels anyone's task.
func cancelTask(t *testing.T, s *engine.Shim, id shim.ID) {
	t.Helper()
	must(t, errorOf(s.Cancel(t.Context(), anyone, "up", id)))
}

// wantResult wants anyone's task to have completed with this result.
func wantResult(t *testing.T, s *engine.Shim, id shim.ID, want string) {
	t.Helper()
	got := read(t, s, id)
	wantStatus(t, got, shim.Completed)
	if string(got.Outcome.Result) != want {
		t.Errorf("result %s, want %s", got.Outcome.Result, want)
	}
}

func wantStatus(t *testing.T, got shim.Task, want shim.Status) {
	t.Helper()
	if got.Status != want {
		t.Fatalf("status %s (%q), want %s", got.Status, got.StatusMessage, want)
	}
}

func TestSlowCallBecomesATask(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		u := takes(8 * time.Second)
		s := w.gateway("a", u, policy(shim.Auto))
		start := time.Now()
		ctx, leave := context.WithCancel(t.Context())
		got, err := s.Call(ctx, call())
		if err != nil || got.Task == nil {
			t.Fatalf("got %+v, %v", got, err)
		}
		if d := time.Since(start); d != 5*time.Second {
			t.Errorf("the handle came after %v, want the grace of 5s", d)
		}
		leave() // nothing happens to a task once it was handed out
		wantStatus(t, read(t, s, got.Task.ID), shim.Working)
		pass(4 * time.Second)
		done := read(t, s, got.Task.ID)
		wantStatus(t, done, shim.Completed)
		if string(done.Outcome.Result) != result {
			t.Errorf("result %s, want it byte for byte", done.Outcome.Result)
		}
		if peeked, err := s.Peek(t.Context(), anyone, "up", got.Task.ID); err != nil || peeked.Status != shim.Completed || peeked.Outcome != nil {
			t.Errorf("peek: %+v, %v", peeked, err)
		}
		if u.calls.Load() != 1 {
			t.Errorf("sent %d times", u.calls.Load())
		}
	})
}

// TestModes: when a call becomes a task, and what its server is told of that. For a client without tasks the policy's
// grace means nothing: its answer stays direct until After is over, by every mode but the two that need no waiting.
func TestModes(t *testing.T) {
	type modeCase struct {
		mode  shim.Mode
		call  func(*shim.Call)
		takes time.Duration // 8 s by default
		task  bool
		err   error
		after time.Duration
		plain bool // the server is told that nobody gets a task of the call, as that is certain from the start
	}
	const long, short = time.Minute, 44 * time.Second
	cases := map[string]modeCase{
		"never":                           {mode: shim.Never, after: 8 * time.Second, plain: true},
		"auto":                            {mode: shim.Auto, task: true, after: 5 * time.Second},
		"auto, in time":                   {mode: shim.Auto, takes: 4 * time.Second, after: 4 * time.Second},
		"always":                          {mode: shim.Always, task: true},
		"required":                        {mode: shim.Required, task: true},
		"auto, client without tasks":      {mode: shim.Auto, call: noHandle, after: 8 * time.Second, plain: true},
		"always, client without tasks":    {mode: shim.Always, call: noHandle, after: 8 * time.Second, plain: true},
		"required, client without tasks":  {mode: shim.Required, call: noHandle, err: shim.ErrNeedsTask},
		"required, client that may block": {mode: shim.Required, call: func(c *shim.Call) { c.Handle, c.Block = false, true }, after: 8 * time.Second, plain: true},
		"never, task demanded":            {mode: shim.Never, call: demand, err: shim.ErrForbidsTask},
		"auto, task demanded":             {mode: shim.Auto, call: demand, task: true},
		"never, of a legacy client":       {mode: shim.Never, call: demandsLegacy, err: shim.ErrForbidsTask}, // (L4, L6)
		"auto, of a legacy client":        {mode: shim.Auto, call: demandsLegacy, task: true},
		"always, of a legacy client":      {mode: shim.Always, call: demandsLegacy, task: true},
		"required, of a legacy client":    {mode: shim.Required, call: demandsLegacy, task: true},

		"auto, told in words, in time":   {mode: shim.Auto, call: inWords, takes: short, after: short},
		"auto, told in words":            {mode: shim.Auto, call: inWords, takes: long, task: true, after: 45 * time.Second},
		"always, told in words, in time": {mode: shim.Always, call: inWords, takes: short, after: short},
		"always, told in words":          {mode: shim.Always, call: inWords, takes: long, task: true, after: 45 * time.Second},
		"required, told in words":        {mode: shim.Required, call: inWords, takes: long, task: true},
		"never, told in words":           {mode: shim.Never, call: inWords, takes: long, after: long, plain: true},
	}
	for _, mode := range []shim.Mode{shim.Never, shim.Auto, shim.Always, shim.Required} { // whatever its client and the operator want
		for name, change := range map[string]func(*shim.Call){
			"takes": func(*shim.Call) {}, "demands": func(c *shim.Call) { c.Handle, c.Demand = false, true }, "is told of": inWords,
		} {
			cases[string(mode)+", principal that may have no tasks "+name+" one"] = modeCase{mode: mode, call: func(c *shim.Call) {
				change(c)
				c.Principal = shim.Principal{Subject: "x", NoTasks: true}
			}, takes: long, after: long, plain: true}
		}
	}
	for name, c := range cases {
		hoursOf(t, name, func(t *testing.T, w *world) {
			for _, block := range []bool{false, true} { // a legacy client that is told in words blocks as well
				made, works := call(), cmp.Or(c.takes, 8*time.Second)
				if c.call != nil {
					c.call(&made)
				}
				if block && made.After == 0 {
					continue
				}
				made.Block = made.Block || block
				u, plain := takes(works), !c.plain
				begin := u.call
				u.call = func(ctx context.Context, r shim.Request, s shim.Sink) (shim.Reply, error) {
					if plain = r.NoTask; r.Within != 24*time.Hour { // the timeout of its policy
						t.Errorf("it may take %v", r.Within)
					}
					return begin(ctx, r, s)
				}
				s := w.gateway(fmt.Sprintf("blocks=%t", block), u, policy(c.mode))
				before, start := w.store.ops.Load(), time.Now()
				got, err := s.Call(t.Context(), made)
				if !errors.Is(err, c.err) || (got.Task != nil) != c.task || time.Since(start) != c.after {
					t.Fatalf("after %v: %+v, %v", time.Since(start), got, err)
				}
				if n := w.store.ops.Load() - before; !c.task && n != 0 {
					t.Errorf("%d operations on the store, want none", n)
				}
				if c.err != nil {
					if u.calls.Load() != 0 {
						t.Error("a refused call was sent")
					}
					continue
				}
				reply := string(got.Reply.Result)
				if c.task {
					pass(works)
					done, err := s.Get(t.Context(), made.Principal, "up", got.Task.ID)
					must(t, err)
					wantStatus(t, done, shim.Completed)
					reply = string(done.Outcome.Result)
				}
				if reply != result || u.calls.Load() != 1 || plain != c.plain {
					t.Errorf("answered %s by %d calls, plain: %t", reply, u.calls.Load(), plain)
				}
			}
		})
	}
}

func noHandle(c *shim.Call) { c.Handle = false }
func demand(c *shim.Call)   { c.Demand = true }

func demandsLegacy(c *shim.Call) { *c = demanded(0) }

// inWords has the client told of a task in words.
func inWords(c *shim.Call) { *c = told() }

func TestClientThatStaysIsOnlyCancelledInWords(t *testing.T) {
	for name, c := range map[string]struct {
		cause error
		want  error
	}{
		"disconnect": {context.Canceled, nil},
		"cancelled":  {shim.ErrCancelled, shim.ErrCancelled},
	} {
		bubbleOf(t, name, func(t *testing.T, w *world) {
			s := w.gateway("a", takes(8*time.Second), policy(shim.Never))
			ctx, leave := context.WithCancelCause(t.Context())
			time.AfterFunc(2*time.Second, func() { leave(c.cause) })
			made := call()
			made.Stay = true
			if _, err := s.Call(ctx, made); !errors.Is(err, c.want) {
				t.Fatalf("got %v, want %v", err, c.want)
			}
		})
	}
}

func TestCancelStopsTheCallWhereverItRuns(t *testing.T) {
	for _, by := range []string{"a", "b"} {
		bubbleOf(t, "by "+by, func(t *testing.T, w *world) {
			u := takes(time.Hour)
			a, r := w.measured("a", u, policy(shim.Always))
			gates := map[string]*engine.Shim{"a": a, "b": w.gateway("b", u, policy(shim.Always))}
			task := begin(t, gates["a"], call())
			got, err := gates[by].Cancel(t.Context(), anyone, "up", task.ID)
			must(t, err)
			wantStatus(t, got, shim.Cancelled)
			synctest.Wait()
			if err := u.ended(); err == nil || errors.Is(err, shim.ErrDetached) {
				t.Errorf("the upstream call ended with %v, want to be cancelled", err)
			}
			if _, err := gates[by].Cancel(t.Context(), anyone, "up", task.ID); !errors.Is(err, shim.ErrFinal) {
				t.Errorf("a second cancel: %v, want ErrFinal", err)
			}
			wantStatus(t, read(t, gates["b"], task.ID), shim.Cancelled)
			pass(time.Second)
			r.Want(map[string]float64{working: 0, durationOf + "cancelled" + ofUp: 1})
		})
	}
}

// Each end of a task is measured once, with its own outcome.
func TestOutcomes(t *testing.T) {
	tool := shim.Reply{Result: json.RawMessage(`{"content":[{"type":"text","text":"no such file"}],"isError":true}`), IsError: true}
	closed := func(unsent bool) error {
		return &shim.UpstreamError{Kind: "closed", Message: "the server closed the stream", Unsent: unsent, Err: errors.New("read tcp 10.1.2.3: reset")}
	}
	for name, c := range map[string]struct {
		reply   shim.Reply
		err     error
		status  shim.Status
		message string
		rpc     string
		outcome string
		unknown float64
	}{
		"completed":        {reply: shim.Reply{Result: json.RawMessage(`{}`)}, status: shim.Completed, outcome: "completed"},
		"tool's own error": {reply: tool, status: shim.Completed, message: "no such file", outcome: "tool_error"},
		"without words": {
			reply:  shim.Reply{Result: json.RawMessage(`{"isError":true}`), IsError: true},
			status: shim.Completed, message: "the tool reported an error", outcome: "tool_error",
		},
		"json-rpc error": {
			reply:  shim.Reply{Error: &shim.RPCError{Code: -32602, Message: "bad <args>", Data: json.RawMessage(`{"n":1.0}`)}},
			status: shim.Failed, message: "bad <args>", rpc: `{"code":-32602,"message":"bad <args>","data":{"n":1.0}}`, outcome: "failed",
		},
		"server gone": {
			err: closed(false), status: shim.Failed, message: "the server closed the stream",
			rpc: `{"code":-32603,"message":"the server closed the stream"}`, outcome: "unknown", unknown: 1,
		},
		"not sent": {
			err: closed(true), status: shim.Failed, message: "the server closed the stream",
			rpc: `{"code":-32603,"message":"the server closed the stream"}`, outcome: "failed",
		},
		"silent": {
			err: &shim.UpstreamError{Kind: shim.KindTimeout, Message: "silent"}, status: shim.Failed, message: "silent",
			rpc: `{"code":-32603,"message":"silent"}`, outcome: "unknown", unknown: 1,
		},
		"of a kind that nobody knows": {
			err: &shim.UpstreamError{Kind: "eaten", Message: "eaten"}, status: shim.Failed, message: "eaten",
			rpc: `{"code":-32603,"message":"eaten"}`, outcome: "unknown", unknown: 1,
		},
		"refused": {
			err: &shim.UpstreamError{Kind: shim.KindRefused, Message: "refused"}, status: shim.Failed, message: "refused",
			rpc: `{"code":-32603,"message":"refused"}`, outcome: "failed",
		},
		"unreachable": {
			err: &shim.UpstreamError{Kind: "unreachable", Message: "away", Unsent: true}, status: shim.Failed, message: "away",
			rpc: `{"code":-32603,"message":"away"}`, outcome: "failed",
		},
		"anything else": {
			err: errors.New("dial tcp 10.1.2.3: secret"), status: shim.Failed, message: "the call failed inside the gateway",
			rpc: `{"code":-32603,"message":"the call failed inside the gateway"}`, outcome: "failed",
		},
	} {
		bubbleOf(t, name, func(t *testing.T, w *world) {
			s, r := w.measured("a", ends(c.reply, c.err), policy(shim.Always))
			task := begin(t, s, call())
			synctest.Wait()
			r.Want(map[string]float64{working: 1, "taskgate.tasks.oldest_age" + ofSlow: 0, answersOf + "task" + ofUp: 1})
			pass(3 * time.Second)
			got := read(t, s, task.ID)
			wantStatus(t, got, c.status)
			if got.StatusMessage != c.message || string(got.Outcome.Error) != c.rpc || got.Outcome.IsError != c.reply.IsError {
				t.Errorf("message %q, outcome %+v (%s)", got.StatusMessage, got.Outcome, got.Outcome.Error)
			}
			r.Want(map[string]float64{
				working: 0, waiting: 0, unknownOutcomes: c.unknown,
				durationOf + c.outcome + ofUp:          1,
				durationOf + c.outcome + ofUp + " sum": 1,
			})
		})
	}
}

func TestTimeoutFailsTheTaskAndCancelsUpstream(t *testing.T) {
	hours(t, func(t *testing.T, w *world) {
		u := takes(time.Hour)
		p := policy(shim.Always)
		p.Timeout = 10 * time.Minute
		s := w.gateway("a", u, p)
		task := begin(t, s, call())
		pass(10*time.Minute + time.Second)
		got := read(t, s, task.ID)
		wantStatus(t, got, shim.Failed)
		if err := u.ended(); err == nil || errors.Is(err, shim.ErrDetached) {
			t.Errorf("the upstream call ended with %v", err)
		}
	})
}

// Unknown, foreign and elsewhere are one and the same answer (design.md 0.7), and so are the tasks of an
// owner who gets none any more.
func TestOnlyTheOwnerSeesATask(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		s := w.gateway("a", takes(time.Hour), policy(shim.Always))
		c := call()
		c.Principal = shim.Principal{Subject: "ann"}
		task := begin(t, s, c)
		for name, who := range map[string]struct {
			p  shim.Principal
			up string
			id shim.ID
		}{
			"another owner":    {shim.Principal{Subject: "bob"}, "up", task.ID},
			"nobody":           {anyone, "up", task.ID},
			"another upstream": {c.Principal, "other", task.ID},
			"without tasks":    {shim.Principal{Subject: "ann", NoTasks: true}, "up", task.ID},
			"unknown":          {c.Principal, "up", "5b0d3d2e-8a37-4b1e-9a57-0d9a3a1c9f00"},
		} {
			if _, err := s.Get(t.Context(), who.p, who.up, who.id); !errors.Is(err, shim.ErrNotFound) {
				t.Errorf("%s: get: %v", name, err)
			}
			if _, err := s.Peek(t.Context(), who.p, who.up, who.id); !errors.Is(err, shim.ErrNotFound) {
				t.Errorf("%s: peek: %v", name, err)
			}
			if tasks, _, err := s.List(t.Context(), who.p, who.up, ""); who.p.Subject != "ann" || who.p.NoTasks {
				if err != nil || len(tasks) > 0 {
					t.Errorf("%s: list: %v, %v", name, tasks, err)
				}
			}
			if _, err := s.Cancel(t.Context(), who.p, who.up, who.id); !errors.Is(err, shim.ErrNotFound) {
				t.Errorf("%s: cancel: %v", name, err)
			}
			if err := s.Update(t.Context(), who.p, who.up, who.id, nil); !errors.Is(err, shim.ErrNotFound) {
				t.Errorf("%s: update: %v", name, err)
			}
		}
		if _, err := s.Get(t.Context(), c.Principal, "up", task.ID); err != nil {
			t.Errorf("the owner: %v", err)
		}
	})
}
