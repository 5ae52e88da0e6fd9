package upstream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"taskgate/internal/budget"
	"taskgate/internal/schematest"
	"taskgate/shim"
	"taskgate/shim/shimtest"
	"taskgate/shim/shimtest/fake"
)

// native makes a modern server with one tool "t" that it runs as a task.
func native(t *testing.T, c Config, script func(*fake.Job), run func(t *testing.T, s *fake.Server, tasks *fake.Tasks, h *ServerClient)) {
	t.Helper()
	bubble(t, fake.Modern, c, func(t *testing.T, s *fake.Server, h *ServerClient) {
		run(t, s, fake.TaskExtension(s, fake.TaskTool{Name: "t", Support: "required", Script: script}), h)
	})
}

// after has a script go on after a while.
func after(d time.Duration, then func(*fake.Job)) func(*fake.Job) {
	return func(j *fake.Job) {
		<-time.After(d)
		then(j)
	}
}

func complete(j *fake.Job) { j.End("completed", "") }

// How a task of a modern server can end, and what is sent meanwhile.
func TestModernTaskEnds(t *testing.T) {
	for name, c := range map[string]struct {
		end   func(*fake.Job)
		check func(shim.Reply) bool
	}{
		"completed": {complete, func(r shim.Reply) bool {
			return r.Error == nil && !r.IsError && strings.Contains(string(r.Result), "result of job-1")
		}},
		"isError": {func(j *fake.Job) { j.End("failed", "") }, func(r shim.Reply) bool { return r.IsError && r.Error == nil }},
		"error": {func(j *fake.Job) { j.Fail(-32077, "broken") }, func(r shim.Reply) bool {
			return r.Error != nil && r.Error.Code == -32603 && strings.Contains(string(r.Error.Data), "broken") // protocol.md 7.5
		}},
		"its own error": {func(j *fake.Job) { j.Fail(-5, "broken") }, func(r shim.Reply) bool {
			return r.Error != nil && r.Error.Code == -5 && r.Error.Message == "broken"
		}},
		"cancelled by itself": {func(j *fake.Job) { j.Fail(0, "no time") }, func(r shim.Reply) bool {
			return r.Error != nil && r.Error.Code == -32603 && strings.HasSuffix(r.Error.Message, ": no time")
		}},
	} {
		t.Run(name, func(t *testing.T) {
			native(t, Config{}, after(time.Second+time.Millisecond, c.end), func(t *testing.T, s *fake.Server, _ *fake.Tasks, h *ServerClient) {
				reply, err := h.Call(t.Context(), in("a", ``), nil)
				if err != nil || !c.check(reply) {
					t.Errorf("%s, %+v, %v", reply.Result, reply.Error, err)
				}
				if got := s.Runs("k"); got != 1 {
					t.Errorf("the tool ran %d times", got)
				}
				for _, x := range s.Seen("tasks/get") {
					if x.Header.Get("Mcp-Name") != "job-1" || x.Header.Get("Mcp-Method") != "tasks/get" {
						t.Errorf("asked with the headers %v", x.Header) // T46
					}
				}
				asked(t, s, "tasks/cancel", 0)
			})
		})
	}
}

// The server is asked as often as it wants, within bounds.
func TestModernTaskPollInterval(t *testing.T) {
	for wants, polls := range map[string]int{
		`"ttlMs":null,"pollIntervalMs":200`:     51,
		`"ttlMs":null,"pollIntervalMs":3000`:    4,
		`"ttlMs":null,"pollIntervalMs":0`:       11,
		`"ttlMs":null`:                          11,
		`"ttlMs":null,"pollIntervalMs":-1`:      11,
		`"ttlMs":null,"pollIntervalMs":1`:       101,
		`"ttlMs":null,"pollIntervalMs":9000000`: 1,
	} {
		bubbleOf(t, wants, fake.Modern, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
			fake.TaskExtension(s, fake.TaskTool{Name: "t", First: func(j *fake.Job) { j.Wants(wants) }, Script: after(10*time.Second+time.Millisecond, complete)})
			began := time.Now()
			mustCall(t, h, in("a", ``))
			if n := len(s.Seen("tasks/get")); n != polls {
				t.Errorf("asked %d times, want %d", n, polls)
			}
			if took := time.Since(began); took > time.Minute+time.Second {
				t.Errorf("it took %v", took)
			}
		})
	}
}

// A server that makes no task has answered (T4, T50), and one that must not make one makes none.
func TestModernTaskNotMade(t *testing.T) {
	bubble(t, fake.Modern, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
		fake.TaskExtension(s)
		s.Tool("t", fake.Text("at once"))
		reply, err := h.Call(t.Context(), in("a", `{"extensions":{"x/y":{"z":1}}}`), nil)
		if got := textIn(t, reply, err); got != "at once" || len(s.Seen("tasks/get")) != 0 {
			t.Errorf("%q", got)
		}
		if got := seenParams(s, "tools/call"); !strings.Contains(got, `"extensions":{"x/y":{"z":1},"io.modelcontextprotocol/tasks":{}}`) {
			t.Errorf("declared in %s", got)
		}
	})
	native(t, Config{Tasks: TasksNever}, complete, func(t *testing.T, s *fake.Server, _ *fake.Tasks, h *ServerClient) {
		reply, err := h.Call(t.Context(), in("a", ``), nil)
		if err != nil || reply.Error == nil || reply.Error.Code != -32021 || s.Runs("k") != 0 {
			t.Errorf("%+v, %v", reply.Error, err)
		}
		if got := seenParams(s, "tools/call"); strings.Contains(got, "io.modelcontextprotocol/tasks") {
			t.Errorf("declared in %s", got)
		}
	})
}

// The status message is progress of the call, above what the server told before it made the
// task, and said once.
func TestModernTaskTells(t *testing.T) {
	native(t, Config{}, func(j *fake.Job) {
		for i := range 3 {
			<-time.After(time.Second + time.Millisecond)
			j.Say(fmt.Sprint("step ", i+1))
		}
		complete(j)
	}, func(t *testing.T, s *fake.Server, _ *fake.Tasks, h *ServerClient) {
		sink := &shimtest.Sink{}
		must(t, errorOf(h.Call(t.Context(), in("a", ``), sink)))
		progress, _ := sink.Heard()
		var last json.RawMessage
		var said []string
		for _, p := range progress {
			said = append(said, p.Message)
			if !p.Status || string(shim.RaiseProgress(p.Raw, last)) != string(p.Raw) {
				t.Errorf("told %+v after %s", p, last)
			}
			last = p.Raw
		}
		if got := strings.Join(said, ", "); got != "step 1, step 2" { // the end comes with the third
			t.Errorf("told %s", got)
		}
	})
}

// A question is put to the client once, however long the server shows it, and its answer goes
// out once, together with those that were asked with it.
func TestModernTaskAsks(t *testing.T) {
	var answered chan string // a channel belongs to the bubble that it is made in
	native(t, Config{}, func(j *fake.Job) {
		a := j.Input("name", "elicitation/create", elicit)
		b := j.Input("model", "sampling/createMessage", `{"messages":[],"maxTokens":1}`)
		answered <- string(j.Await(a)) + string(j.Await(b))
		c := j.Input("more", "elicitation/create", elicit)
		answered <- string(j.Await(c))
		complete(j)
	}, func(t *testing.T, s *fake.Server, _ *fake.Tasks, h *ServerClient) {
		answered = make(chan string, 1)
		sink := &shimtest.Sink{}
		sink.OnAsk = func(ctx context.Context, q ...shim.Question) ([]shim.Answer, error) {
			pauseFor(t, time.Minute) // many polls
			return answering(ctx, q...)
		}
		done := make(chan error, 1)
		go func() { _, err := h.Call(t.Context(), askedCall("a"), sink); done <- err }()
		if got := <-answered; got != `{"to":"elicitation/create"}{"to":"sampling/createMessage"}` {
			t.Errorf("answered with %s", got)
		}
		if got := <-answered; got != `{"to":"elicitation/create"}` {
			t.Errorf("answered with %s", got)
		}
		must(t, <-done)
		asked, updates := sink.Asked(), s.Seen("tasks/update")
		if len(asked) != 3 || len(updates) != 2 {
			t.Errorf("%d questions, %d answers", len(asked), len(updates))
		}
		keys := map[string]bool{}
		for _, q := range asked {
			keys[q.Key] = true
			if q.Key == "name" || q.Key == "model" || q.Key == "more" {
				t.Errorf("the server's key %q shows", q.Key)
			}
		}
		if len(keys) != 3 {
			t.Errorf("keys %v", keys) // T39
		}
	})
}

// A server may show a question for a while after it took the answer (T34).
func TestModernTaskAsksLate(t *testing.T) {
	native(t, Config{}, func(j *fake.Job) { j.Cancelled() }, func(t *testing.T, s *fake.Server, _ *fake.Tasks, h *ServerClient) {
		shown := 0
		s.On("tasks/get", func(x *fake.Exchange) {
			if shown++; shown < 30 {
				fake.Result(`{"resultType":"complete","taskId":"job-1","status":"input_required","ttlMs":null,"inputRequests":{"q":{"method":"elicitation/create","params":` + elicit + `}}}`)(x)
				return
			}
			fake.Result(`{"resultType":"complete","taskId":"job-1","status":"completed","ttlMs":null,"result":{"content":[]}}`)(x)
		})
		sink := &shimtest.Sink{}
		sink.OnAsk = answering
		must(t, errorOf(h.Call(t.Context(), askedCall("a"), sink)))
		if a, u := len(sink.Asked()), len(s.Seen("tasks/update")); a != 1 || u != 1 {
			t.Errorf("asked %d times, answered %d times", a, u)
		}
	})
}

// What cannot be answered ends the call and the task; a refused elicitation can be (H3).
func TestModernTaskRefused(t *testing.T) {
	refuses := func(context.Context, ...shim.Question) ([]shim.Answer, error) {
		return []shim.Answer{{Error: &shim.RPCError{Code: -1, Message: "no"}}}, nil
	}
	for name, c := range map[string]struct {
		method, caps string
		ask          func(context.Context, ...shim.Question) ([]shim.Answer, error)
		limit        int
		code         int64
	}{
		"undeclared":              {"roots/list", `{"elicitation":{}}`, answering, 0, -32021},
		"nobody to ask":           {"elicitation/create", all, nil, 0, -32603},
		"a refusal":               {"sampling/createMessage", all, refuses, 0, -32603},
		"a refusal that can be":   {"elicitation/create", all, refuses, 0, 0},
		"more than it may":        {"elicitation/create", all, answering, 1, -32603},
		"what is no question":     {"tools/call", all, answering, 0, -1},
		"an answer that is taken": {"roots/list", all, answering, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			native(t, Config{}, func(j *fake.Job) {
				if c.limit > 0 {
					j.Input("first", c.method, elicit)
				}
				j.Await(j.Input("q", c.method, elicit))
				complete(j)
			}, func(t *testing.T, s *fake.Server, _ *fake.Tasks, h *ServerClient) {
				r := in("a", c.caps)
				r.Rounds, r.Limits.Most = true, c.limit
				sink := &shimtest.Sink{}
				sink.OnAsk = c.ask
				reply, err := h.Call(t.Context(), r, sink)
				switch {
				case c.code == -1:
					checkKind(t, reply, err, shim.KindProtocol, 0)
				default:
					checkKind(t, reply, err, "", c.code)
				}
				cancelled := len(s.Seen("tasks/cancel"))
				if (cancelled == 1) != (c.code != 0) {
					t.Errorf("cancelled %d times", cancelled)
				}
				if c.code == 0 && c.method == "elicitation/create" && !strings.Contains(seenParams(s, "tasks/update"), `"q":{"action":"cancel"}`) {
					t.Errorf("answered %s", seenParams(s, "tasks/update"))
				}
			})
		})
	}
}

// A question that is open no more is withdrawn from the client, and may be asked anew.
func TestModernTaskWithdraws(t *testing.T) {
	var again chan bool
	native(t, Config{}, func(j *fake.Job) {
		j.Input("q", "elicitation/create", elicit)
		<-time.After(time.Second + time.Millisecond)
		j.Withdraw("q")
		<-again
		j.Await(j.Input("q", "elicitation/create", elicit))
		complete(j)
	}, func(t *testing.T, s *fake.Server, _ *fake.Tasks, h *ServerClient) {
		asked := 0
		again = make(chan bool, 1)
		sink := &shimtest.Sink{}
		sink.OnAsk = func(ctx context.Context, q ...shim.Question) ([]shim.Answer, error) {
			if asked++; asked == 2 {
				return answering(ctx, q...)
			}
			<-ctx.Done()
			again <- true
			return nil, context.Cause(ctx)
		}
		must(t, errorOf(h.Call(t.Context(), askedCall("a"), sink)))
		if n := len(s.Seen("tasks/update")); asked != 2 || n != 1 {
			t.Errorf("asked %d times, answered %d times", asked, n)
		}
	})
}

// An answer is brought to a server that is away for a while, and one that the server does not
// take ends the call.
func TestModernTaskAnswerLost(t *testing.T) {
	native(t, Config{}, func(j *fake.Job) { j.Await(j.Input("q", "elicitation/create", elicit)); complete(j) }, func(t *testing.T, s *fake.Server, tasks *fake.Tasks, h *ServerClient) {
		tries := 0
		s.On("tasks/update", func(x *fake.Exchange) {
			switch tries++; {
			case tries == 1:
				x.Head("text/event-stream") // and the answer is lost
				x.Hang()
				return
			case tries < 5:
				fake.Status(502, "", "")(x)
				return
			}
			tasks.Jobs()[0].Withdraw("q")
			complete(tasks.Jobs()[0])
			fake.Result(`{"resultType":"complete"}`)(x)
		})
		sink := &shimtest.Sink{}
		sink.OnAsk = answering
		reply, err := h.Call(t.Context(), askedCall("a"), sink)
		if got := textIn(t, reply, err); got != "result of job-1" || tries != 5 || len(sink.Asked()) != 1 {
			t.Errorf("%q after %d attempts", got, tries)
		}
	})
	native(t, Config{}, func(j *fake.Job) { j.Input("q", "elicitation/create", elicit) }, func(t *testing.T, s *fake.Server, _ *fake.Tasks, h *ServerClient) {
		s.On("tasks/update", fake.RPCError(200, -32602, "secret", ""))
		sink := &shimtest.Sink{}
		sink.OnAsk = answering
		reply, err := h.Call(t.Context(), askedCall("a"), sink)
		checkKind(t, reply, err, shim.KindProtocol, 0)
		if err != nil && strings.Contains(err.Error(), "secret") {
			t.Errorf("the server's words are in %v", err)
		}
		asked(t, s, "tasks/cancel", 1)
	})
}

// Who cancels has the task cancelled there, once.
func TestModernTaskCancelled(t *testing.T) {
	for _, asked := range []bool{false, true} {
		var over chan struct{}
		native(t, Config{}, func(j *fake.Job) {
			if asked {
				j.Input("q", "elicitation/create", elicit)
			}
			j.Cancelled()
			close(over)
		}, func(t *testing.T, s *fake.Server, _ *fake.Tasks, h *ServerClient) {
			over = make(chan struct{})
			ctx, cancel := context.WithCancel(t.Context())
			sink := &shimtest.Sink{}
			sink.OnAsk = waitFor
			time.AfterFunc(time.Minute+time.Millisecond, cancel)
			if _, err := h.Call(ctx, askedCall("a"), sink); !errors.Is(err, context.Canceled) {
				t.Errorf("error %v", err)
			}
			<-over
			if c, n := len(s.Seen("tasks/cancel")), len(s.Seen("notifications/cancelled")); c != 1 || n != 0 {
				t.Errorf("%d tasks/cancel, %d notifications/cancelled", c, n)
			}
		})
	}
}

// The name of a task that comes while its call is being cancelled is not lost.
func TestModernTaskCancelledEarly(t *testing.T) {
	native(t, Config{}, (*fake.Job).Cancelled, func(t *testing.T, s *fake.Server, _ *fake.Tasks, h *ServerClient) {
		ctx, cancel := context.WithCancel(t.Context())
		sink := &shimtest.Sink{}
		sink.OnCheckpoint = cancelLater(cancel)
		if _, err := h.Call(ctx, in("a", ``), sink); !errors.Is(err, context.Canceled) {
			t.Errorf("error %v", err)
		}
		synctest.Wait()
		asked(t, s, "tasks/cancel", 1)
	})
	native(t, Config{}, nil, func(t *testing.T, s *fake.Server, _ *fake.Tasks, h *ServerClient) {
		x := h.wire.modernExchange(in("a", ``), discard{}, "2026-07-28")
		x.task = newServerTask(x, &taskMark{ID: "job-1"}) // the answer has overtaken the cancellation
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := x.task.followAnswer(ctx, ctx.Err()); !errors.Is(err, context.Canceled) || len(s.Seen("tasks/cancel")) != 1 {
			t.Errorf("%d tasks/cancel: %v", len(s.Seen("tasks/cancel")), err)
		}
	})
}

// A task that the server forgets, at its ttl or otherwise, has a clear end.
func TestModernTaskForgotten(t *testing.T) {
	native(t, Config{}, func(*fake.Job) {}, func(t *testing.T, s *fake.Server, tasks *fake.Tasks, h *ServerClient) {
		time.AfterFunc(time.Minute+time.Millisecond, tasks.Forget)
		_, err := h.Call(t.Context(), in("a", ``), nil)
		ue, ok := errors.AsType[*shim.UpstreamError](err)
		if !ok || ue.Kind != shim.KindClosed || !strings.Contains(ue.Message, "no longer knows the task that it made of the call (it keeps it for 1m0s)") {
			t.Errorf("error %v", err)
		}
		if s.Runs("k") != 1 || strings.Contains(fmt.Sprint(err), "job-1") {
			t.Errorf("%d runs, error %v", s.Runs("k"), err)
		}
	})
}

// A server that is away is asked again for some minutes, and not for ever.
func TestModernTaskServerAway(t *testing.T) {
	for outage, want := range map[int]bool{8: true, 1000: false} {
		native(t, Config{}, func(*fake.Job) {}, func(t *testing.T, s *fake.Server, _ *fake.Tasks, h *ServerClient) {
			var all atomic.Int64
			s.On("tasks/get", func(x *fake.Exchange) {
				switch tries := int(all.Add(1)); {
				case tries > outage:
					fake.Result(`{"resultType":"complete","taskId":"job-1","status":"completed","ttlMs":null,"result":{"resultType":"complete","content":[]}}`)(x)
				case tries%5 == 0:
					x.Cut()
				case tries%5 == 1:
					x.Head("text/event-stream") // and the answer is lost
					x.Hang()
				case tries%5 == 2:
					fake.RPCError(200, -32603, "the database is locked", "")(x)
				case tries == 4:
					fake.RPCError(404, -32601, "the tools are being loaded", "")(x)
				case tries%5 == 3:
					fake.Status(503, "", "", "Retry-After", "7")(x)
				default:
					x.Hang()
				}
			})
			_, err := h.Call(t.Context(), in("a", ``), nil)
			if tries := all.Load(); (err == nil) != want || tries > lostTries+1 {
				t.Errorf("after %d attempts: %v", tries, err)
			}
		})
	}
}

// A server whose answers about its task are nonsense ends the call.
func TestModernTaskNonsense(t *testing.T) {
	for name, answer := range map[string]fake.Behaviour{
		"a status that is none":      fake.Result(`{"taskId":"job-1","status":"asleep"}`),
		"no status":                  fake.Result(`{"taskId":"job-1"}`),
		"completed without a result": fake.Result(`{"taskId":"job-1","status":"completed"}`),
		"a result of another kind":   fake.Result(`{"taskId":"job-1","status":"completed","result":{"resultType":"task","taskId":"x"}}`),
		"failed without an error":    fake.Result(`{"taskId":"job-1","status":"failed"}`),
		"an error that is none":      fake.Result(`{"taskId":"job-1","status":"failed","error":{"code":"x"}}`),
		"questions that are none":    fake.Result(`{"taskId":"job-1","status":"input_required","inputRequests":[]}`),
		"no questions":               fake.Result(`{"taskId":"job-1","status":"input_required"}`),
		"no such method":             fake.RPCError(404, -32601, "no", ""),
		"a page":                     fake.HTML(),
	} {
		t.Run(name, func(t *testing.T) {
			native(t, Config{}, func(*fake.Job) {}, func(t *testing.T, s *fake.Server, _ *fake.Tasks, h *ServerClient) {
				s.On("tasks/get", answer)
				reply, err := h.Call(t.Context(), askedCall("a"), nil)
				if err == nil || s.Runs("k") == 0 {
					t.Errorf("answered %+v", reply)
				}
				asked(t, s, "tools/call", 1)
			})
		})
	}
}

// A call that is let go of is taken up by its task: nothing is sent again, and a question that
// was put is under its key still.
func TestModernTaskTakenUp(t *testing.T) {
	for _, asks := range []bool{false, true} {
		native(t, Config{}, func(j *fake.Job) {
			if asks {
				j.Await(j.Input("q", "elicitation/create", elicit))
			}
			<-time.After(time.Minute)
			complete(j)
		}, func(t *testing.T, s *fake.Server, _ *fake.Tasks, h *ServerClient) {
			ctx, cancel := context.WithCancelCause(t.Context())
			first := &shimtest.Sink{}
			first.OnAsk = waitFor
			time.AfterFunc(10*time.Second+time.Millisecond, func() { cancel(shim.ErrDetached) })
			if _, err := h.Call(ctx, askedCall("a"), first); !errors.Is(err, shim.ErrDetached) {
				t.Fatal(err)
			}
			if !h.Resumable(first.Latest()) {
				t.Fatalf("cannot be resumed: %s", first.Latest())
			}
			next := &shimtest.Sink{}
			next.OnAsk = answering
			reply, err := h.Resume(t.Context(), askedCall("a"), first.Latest(), next)
			if got := textIn(t, reply, err); got != "result of job-1" {
				t.Errorf("%q", got)
			}
			if n, c, u := len(s.Seen("tools/call")), len(s.Seen("tasks/cancel")), len(s.Seen("tasks/update")); n != 1 || c != 0 || (u == 1) != asks {
				t.Errorf("%d calls, %d cancellations, %d answers", n, c, u)
			}
			if asks && (len(next.Asked()) != 1 || next.Asked()[0].Key != first.Asked()[0].Key) {
				t.Errorf("asked %+v, then %+v", first.Asked(), next.Asked())
			}
		})
	}
}

// A checkpoint of a task that the server has forgotten cannot be resumed; one of a call that was
// no task yet never could.
func TestModernTaskNotTakenUp(t *testing.T) {
	native(t, Config{}, func(*fake.Job) {}, func(t *testing.T, s *fake.Server, _ *fake.Tasks, h *ServerClient) {
		cp := `{"era":"modern","version":"2026-07-28","id":"x-1","task":{"id":"job-9"}}`
		if _, err := h.Resume(t.Context(), in("a", ``), json.RawMessage(cp), nil); !errors.Is(err, shim.ErrNotResumable) {
			t.Errorf("error %v", err)
		}
		if h.Resumable(json.RawMessage(strings.Replace(cp, `"id":"job-9"`, ``, 1))) || len(s.Seen("tools/call")) != 0 {
			t.Error("a call without a task is resumable")
		}
	})
}

// What is said to a server about its tasks is what the extension's schema has.
func TestModernTaskMessages(t *testing.T) {
	native(t, Config{}, func(j *fake.Job) {
		j.Await(j.Input("q", "elicitation/create", elicit))
		j.Cancelled()
	}, func(t *testing.T, s *fake.Server, _ *fake.Tasks, h *ServerClient) {
		ctx, cancel := context.WithCancel(t.Context())
		sink := &shimtest.Sink{}
		sink.OnAsk = func(context.Context, ...shim.Question) ([]shim.Answer, error) {
			return []shim.Answer{{Result: json.RawMessage(`{"action":"accept","content":{"name":"Ada"}}`)}}, nil
		}
		time.AfterFunc(time.Minute+time.Millisecond, cancel)
		_, _ = h.Call(ctx, askedCall("a"), sink)
		for method, definition := range map[string]string{
			"tasks/get": "GetTaskRequest", "tasks/update": "UpdateTaskRequest", "tasks/cancel": "CancelTaskRequest",
		} {
			seen := s.Seen(method)
			if len(seen) == 0 {
				t.Errorf("no %s was sent", method)
			}
			for _, x := range seen {
				schematest.Validate(t, schematest.TasksExtension, definition, x.Message)
			}
		}
		for _, x := range s.Seen("tools/call") {
			schematest.Validate(t, "2026-07-28", "CallToolRequest", x.Message)
		}
	})
}

// What the server says while it is polled is given back, however long that goes on; the result
// is held with its call.
func TestModernTaskBytes(t *testing.T) {
	const size = 100_000
	native(t, Config{}, after(time.Millisecond, func(j *fake.Job) {
		j.Say(strings.Repeat("m", size))
		<-time.After(10 * time.Second)
		j.Keep(strings.Repeat("x", size))
		complete(j)
	}), func(t *testing.T, s *fake.Server, _ *fake.Tasks, h *ServerClient) {
		b := budget.New(64<<20, 1<<20, time.Minute)
		h.wire.cfg.Budget = b
		hold := b.Hold()
		time.AfterFunc(9*time.Second+50*time.Millisecond, func() {
			if n := b.Held(); n > 2*size {
				t.Errorf("%d bytes are held after %d polls", n, len(s.Seen("tasks/get")))
			}
		})
		must(t, errorOf(h.Call(budget.With(t.Context(), hold), in("a", ``), nil)))
		if n := b.Held(); n < size {
			t.Errorf("%d bytes are held for a result of %d", n, size)
		}
		hold.Release()
		if n := b.Held(); n != 0 {
			t.Errorf("%d bytes are left", n)
		}
	})
}
