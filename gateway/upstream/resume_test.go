package upstream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"

	"taskgate/gateway/upstream/transport"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/internal/work"
	"taskgate/shim"
	"taskgate/shim/shimtest"
	"taskgate/shim/shimtest/fake"
)

// steps is a tool that sends n steps of progress, a second apart, and answers.
// Its response is cut after some of its events.
func steps(n int, retry time.Duration, cut int) fake.Behaviour {
	return func(x *fake.Exchange) {
		x.Run()
		x.Resumable(retry, cut, func(send func(string)) {
			for i := range n {
				_ = work.Pause(context.Background(), time.Second)
				send(x.Progress(i+1, fmt.Sprint(i+1)))
			}
			send(x.Fill(result))
		})
	}
}

func messages(ps []shim.Progress) string {
	var out []string
	for _, p := range ps {
		out = append(out, p.Message)
	}
	return strings.Join(out, " ")
}

// A stream that ends before the answer is picked up where it broke, without a
// second run, and nothing is heard twice.
func TestResumeInCall(t *testing.T) {
	for _, c := range []struct {
		name  string
		retry time.Duration
		cut   int
		all   bool
	}{
		{"cut after the first event", 0, 1, false},
		{"cut in the middle", 0, 4, false},
		{"polling", 3 * time.Second, 1, false},
		{"replay of everything", 0, 4, true},
	} {
		bubbleOf(t, c.name, fake.Stateful, Config{IdleTimeout: 4 * time.Second}, func(t *testing.T, s *fake.Server, h *ServerClient) {
			s.Tool("other", steps(2, 0, 0))
			s.Tool("t", steps(5, c.retry, c.cut))
			if c.all {
				s.ReplayAll()
			}
			other := shimtest.Tool("other", "other")
			other.Session.Key = "a"
			mustCall(t, h, other)
			var sink shimtest.Sink
			r, err := callIn(t, h, ``, &sink)
			checkKind(t, r, err, "", 0)
			if p, _ := sink.Heard(); messages(p) != "1 2 3 4 5" {
				t.Errorf("heard %q", messages(p))
			}
			if s.Runs("k") != 1 || len(s.Seen("GET")) != 1 {
				t.Errorf("tool ran %d times, %d GETs", s.Runs("k"), len(s.Seen("GET")))
			}
		})
	}
}

// What answers a resumption with no stream ends the call, and the call is never
// sent again for it: it had begun.
func TestResumeRefused(t *testing.T) {
	for _, c := range []struct {
		name string
		get  fake.Behaviour
		kind string
		gets int
	}{
		{"404", fake.Status(404, "", ""), shim.KindSession, 1},
		{"405", fake.Status(405, "", ""), shim.KindClosed, 1},
		{"400", fake.RPCError(400, -32022, "m", `{"supported":["2026-07-28"]}`), shim.KindClosed, 1},
		{"401", fake.Status(401, "", ""), shim.KindRefused, 1},
		{"HTML", fake.HTML(), shim.KindClosed, 1},
		{"503", fake.Status(503, "", ""), shim.KindClosed, maxTries},
		{"409", fake.Status(409, "", ""), shim.KindClosed, maxTries},
		{"421", fake.Status(421, "", ""), shim.KindClosed, maxTries},
		{"425", fake.Status(425, "", ""), shim.KindClosed, maxTries},
		{"cut", func(x *fake.Exchange) { x.Cut() }, shim.KindClosed, maxTries},
		{"empty", func(x *fake.Exchange) { x.Head("text/event-stream") }, shim.KindClosed, maxTries},
	} {
		bubbleOf(t, c.name, fake.Stateful, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
			s.Tool("t", steps(5, 0, 2))
			s.On("GET", c.get)
			r, err := callIn(t, h, ``, nil)
			checkKind(t, r, err, c.kind, 0)
			gets := len(s.Seen("GET"))
			if c.name == "cut" && gets == c.gets+1 {
				gets-- // net/http repeats a GET on a connection that was used before
			}
			if s.Runs("k") != 1 || gets != c.gets {
				t.Errorf("tool ran %d times, %d GETs, want 1 and %d", s.Runs("k"), len(s.Seen("GET")), c.gets)
			}
			pauseFor(t, time.Minute) // for the fake's own work
		})
	}
}

// A server that asks to be polled is polled for as long as it takes.
func TestPolling(t *testing.T) {
	bubble(t, fake.Stateful, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
		polls := 0
		s.Tool("t", steps(0, 10*time.Second, 1))
		var id string
		s.On("GET", func(x *fake.Exchange) {
			x.Head("text/event-stream")
			if polls++; polls == 100 {
				id = s.Seen("tools/call")[0].ID
				x.Event(strings.ReplaceAll(result, "{id}", id))
			}
		})
		start := time.Now()
		r, err := callIn(t, h, ``, nil)
		checkKind(t, r, err, "", 0)
		if d := time.Since(start); polls != 100 || d < 1000*time.Second {
			t.Errorf("%d polls in %v", polls, d)
		}
	})
}

// detach runs a call until it has been resumable for a while, lets go of it, and
// returns the last checkpoint.
func detach(t *testing.T, h *ServerClient, r shim.Request, sink *shimtest.Sink, after time.Duration) json.RawMessage {
	t.Helper()
	f := aloftIn(t, h, r, sink)
	pauseFor(t, after)
	f.leave(t, shim.ErrDetached)
	return sink.Latest()
}

// another is an upstream client of another replica to the same server.
func another(t *testing.T, h *ServerClient) *ServerClient {
	t.Helper()
	c := h.wire.cfg
	c.Replica, c.FirstID = "other", 1000
	o, err := New(c)
	must(t, err)
	baseOf(o).DialContext = baseOf(h).DialContext
	t.Cleanup(func() { _ = o.Close(context.WithoutCancel(t.Context())) })
	return o
}

// Another replica goes on from the checkpoint: the tool ran once, and together
// the two have heard everything exactly once.
func TestResumeElsewhere(t *testing.T) {
	for _, key := range []string{"a", ""} {
		bubble(t, fake.Stateful, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
			s.Tool("t", steps(5, 0, 0))
			r := in(key, ``)
			var first, second shimtest.Sink
			cp := detach(t, h, r, &first, 2500*time.Millisecond)
			o := another(t, h)
			reply, err := o.Resume(t.Context(), r, cp, &second)
			checkKind(t, reply, err, "", 0)
			a, _ := first.Heard()
			b, _ := second.Heard()
			if got := messages(a) + "|" + messages(b); got != "1 2|3 4 5" {
				t.Errorf("heard %q", got)
			}
			if s.Runs("k") != 1 || len(s.Seen("initialize")) != 1 {
				t.Errorf("tool ran %d times, %d handshakes", s.Runs("k"), len(s.Seen("initialize")))
			}
			mustCall(t, o, r) // under a key, the session goes on at the new replica
			if n := len(s.Seen("initialize")); key == "a" && n != 1 {
				t.Errorf("%d handshakes", n)
			}
		})
	}
}

// A hidden tool has its own name in the answer at the replica that goes on, which knows the name that was sent alone.
func TestResumeOfHiddenTool(t *testing.T) {
	bubble(t, fake.Stateful, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
		s.Tool("t", func(x *fake.Exchange) {
			x.Resumable(0, 0, func(send func(string)) {
				_ = work.Pause(context.Background(), 10*time.Second)
				send(x.Fill(`{"jsonrpc":"2.0","id":{id},"result":{"content":[{"type":"text","text":"Unknown tool: KQ7XNAME"}],"isError":true}}`))
			})
		})
		r := in("a", ``)
		r.Name, r.Shown = "KQ7XNAME", "admin_reset"
		cp := detach(t, h, r, &shimtest.Sink{}, 2500*time.Millisecond)
		r.Shown = ""
		reply, err := another(t, h).Resume(t.Context(), r, cp, &shimtest.Sink{})
		if err != nil || !strings.Contains(string(reply.Result), "Unknown tool: admin_reset") {
			t.Errorf("the client gets %s, %v", reply.Result, err)
		}
	})
}

// A question that was open when its replica was lost is put again, under its key, and the answer goes back under the
// server's id. A replay of it is no second question. A server may begin a resumed stream with its first event, and have
// none before the question is answered (Go SDK 1.8.0): the answer is not kept back, and whether the stream is refused
// after all is seen when that comes.
func TestResumeQuestion(t *testing.T) {
	for name, c := range map[string]struct {
		resumes func(s *fake.Server)
		kind    string
	}{
		"replayed":  {(*fake.Server).ReplayAll, ""},
		"late head": {(*fake.Server).LateHeads, ""},
		"refused": {func(s *fake.Server) {
			s.LateHeads()
			s.On("GET", func(x *fake.Exchange) {
				_ = work.Pause(context.Background(), time.Second)
				fake.Status(400, "text/plain", "stream replay unsupported")(x)
			})
		}, shim.KindClosed},
	} {
		bubbleOf(t, name, fake.Stateful, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
			var got json.RawMessage
			s.Tool("t", asking(&got, func(func(string)) {}))
			r := in("a", all)
			first, second := silent(), &shimtest.Sink{OnAsk: answering}
			cp := detach(t, h, r, first, time.Second)
			c.resumes(s)
			o := another(t, h)
			ctx, stop := context.WithTimeout(t.Context(), 20*time.Second)
			defer stop()
			reply, err := o.Resume(ctx, r, cp, second)
			checkKind(t, reply, err, c.kind, 0)
			q1, q2 := first.Asked(), second.Asked()
			if len(q1) != 1 || len(q2) != 1 || q1[0].Key != q2[0].Key || string(q2[0].Params) == "" {
				t.Errorf("questions %+v and %+v", q1, q2)
			}
			if c.kind == "" && !strings.Contains(string(got), `"id":"q"`) {
				t.Errorf("the server got %s", got)
			}
		})
	}
}

// A server that says nothing new on a resumed stream is asked again.
func TestResumeDeafServer(t *testing.T) {
	bubble(t, fake.Stateful, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
		s.ReplayOnly()
		s.Tool("t", steps(5, 0, 0))
		r := in("a", ``)
		var first, second shimtest.Sink
		cp := detach(t, h, r, &first, 2500*time.Millisecond)
		o := another(t, h)
		reply, err := o.Resume(t.Context(), r, cp, &second)
		checkKind(t, reply, err, "", 0)
		if p, _ := second.Heard(); messages(p) != "3 4 5" || len(s.Seen("GET")) != 2 {
			t.Errorf("heard %q in %d GETs", messages(p), len(s.Seen("GET")))
		}
		s.Tool("t", func(x *fake.Exchange) {
			x.Resumable(0, 1, func(send func(string)) {
				_ = work.Pause(context.Background(), time.Hour)
				send(x.Fill(result))
			})
		})
		reply, err = o.Call(t.Context(), r, nil)
		checkKind(t, reply, err, "", 0)
		if n := len(s.Seen("GET")); n < 100 || n > 130 {
			t.Errorf("%d GETs in an hour", n)
		}
	})
}

func TestResumeImpossible(t *testing.T) {
	bubble(t, fake.Stateful, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
		s.Tool("t", steps(100, 0, 0))
		cp := detach(t, h, in("a", ``), &shimtest.Sink{}, 1500*time.Millisecond)
		s.LoseSessions()
		_, err := another(t, h).Resume(t.Context(), in("a", ``), cp, nil)
		if !errors.Is(err, shim.ErrNotResumable) {
			t.Errorf("lost session: %v", err)
		}
		pauseFor(t, 3*time.Minute)
	})
	// Without event ids nothing can be picked up, and modern streams never can.
	for _, m := range []fake.Mode{fake.Stateful, fake.Modern} {
		bubble(t, m, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
			s.Tool("t", func(x *fake.Exchange) { x.Comment(); x.Hang() })
			cp := detach(t, h, in("a", ``), &shimtest.Sink{}, time.Second)
			_, err := another(t, h).Resume(t.Context(), in("a", ``), cp, nil)
			if cp == nil || !errors.Is(err, shim.ErrNotResumable) {
				t.Errorf("checkpoint %s: %v", cp, err)
			}
		})
	}
}

// Event ids that no progress carries are handed over, but not each of them.
func TestCheckpointRate(t *testing.T) {
	bubble(t, fake.Stateful, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
		s.Tool("t", func(x *fake.Exchange) {
			x.Resumable(0, 0, func(send func(string)) {
				for range 100 {
					_ = work.Pause(context.Background(), 100*time.Millisecond)
					send(`{"jsonrpc":"2.0","method":"notifications/x"}`)
				}
				send(x.Fill(result))
			})
		})
		var sink shimtest.Sink
		must(t, errorOf(callIn(t, h, ``, &sink)))
		if n := len(sink.Checkpoints()); n < 10 || n > 13 {
			t.Errorf("%d checkpoints in 10 s, want about one a second and the first", n)
		}
	})
}

// A cancelled resumption is told to the server like any other.
func TestResumeCancelled(t *testing.T) {
	bubble(t, fake.Stateful, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
		s.Tool("t", steps(10, 0, 0))
		cp := detach(t, h, in("a", ``), &shimtest.Sink{}, 1500*time.Millisecond)
		o := another(t, h)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := o.Resume(ctx, in("a", ``), cp, nil); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error %v", err)
		}
		synctest.Wait()
		if c := s.Seen("notifications/cancelled"); len(c) != 1 || !strings.Contains(string(c[0].Params), s.Seen("tools/call")[0].ID) {
			t.Errorf("cancellations %v", c)
		}
		pauseFor(t, time.Minute)
	})
}

// How far a stream was read is handed over when the call is let go of, however short
// ago the last checkpoint was.
func TestNewestCheckpointOnDetach(t *testing.T) {
	bubble(t, fake.Stateful, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
		s.Tool("t", func(x *fake.Exchange) {
			x.Resumable(0, 0, func(send func(string)) {
				for range 10 {
					send(`{"jsonrpc":"2.0","method":"notifications/x"}`)
				}
				_ = work.Pause(context.Background(), time.Minute)
				send(x.Fill(result))
			})
		})
		var sink shimtest.Sink
		cp, _ := decodeResumable(detach(t, h, in("a", ``), &sink, 100*time.Millisecond))
		first, _ := decodeResumable(sink.Checkpoints()[1])
		if n := len(sink.Checkpoints()); n != 3 || cp.Last == "" || cp.Last == first.Last {
			t.Errorf("%d checkpoints, from %q to %q", n, first.Last, cp.Last)
		}
		pauseFor(t, 2*time.Minute)
	})
}

// asking asks once and answers with the result, and says how it was answered.
func asking(got *json.RawMessage, after func(send func(string))) fake.Behaviour {
	return func(x *fake.Exchange) {
		x.Run()
		answer := x.Expect(`"q"`)
		x.Resumable(0, 0, func(send func(string)) {
			send(`{"jsonrpc":"2.0","method":"notifications/x"}`)
			send(`{"jsonrpc":"2.0","id":"q","method":"elicitation/create","params":` + elicit + `}`)
			after(send)
			*got = x.Await(answer)
			send(x.Fill(result))
		})
	}
}

// An answer is posted until the server takes it: a restart behind its proxy, 20 s of 502, costs nobody the answer.
func TestAnswerThroughAnOutage(t *testing.T) {
	bubble(t, fake.Stateful, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
		var got json.RawMessage
		s.Tool("t", asking(&got, func(func(string)) {}))
		back := time.Now().Add(20 * time.Second)
		s.OnAnswer(func(x *fake.Exchange) bool {
			away := time.Now().Before(back)
			if away {
				fake.Status(502, "text/plain", "bad gateway")(x)
			}
			return !away
		})
		reply, err := h.Call(t.Context(), in("a", all), &shimtest.Sink{OnAsk: answering})
		checkKind(t, reply, err, "", 0)
		if !strings.Contains(string(got), `"id":"q"`) || s.Runs("k") != 1 {
			t.Errorf("the server got %s, and ran %d times", got, s.Runs("k"))
		}
	})
}

// A call comes back to the replica that had it with a checkpoint from before the question, since Redis has lost
// the newer one: the question is heard once more, and not taken for a replay.
func TestQuestionComesBack(t *testing.T) {
	for name, answers := range map[string]bool{"detached while asked": false, "detached with the answer": true} {
		bubbleOf(t, name, fake.Stateful, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
			var got json.RawMessage
			s.Tool("t", asking(&got, func(func(string)) {}))
			r := in("a", all)
			ctx, end := context.WithCancelCause(t.Context())
			first := &shimtest.Sink{OnAsk: func(ctx context.Context, q ...shim.Question) ([]shim.Answer, error) {
				end(shim.ErrDetached)
				if answers {
					return answering(ctx, q...)
				}
				return nil, context.Cause(ctx)
			}}
			if _, err := h.Call(ctx, r, first); !errors.Is(err, shim.ErrDetached) {
				t.Fatalf("the call ended with %v", err)
			}
			var state checkpoint
			if err := json.Unmarshal(first.Latest(), &state); err != nil || len(state.Pending) != 1 {
				t.Errorf("the last checkpoint is %s (%v)", first.Latest(), err)
			}
			second := &shimtest.Sink{OnAsk: answering}
			ctx, stop := context.WithTimeout(t.Context(), time.Minute)
			defer stop()
			reply, err := h.Resume(ctx, r, first.Checkpoints()[1], second)
			checkKind(t, reply, err, "", 0)
			q1, q2 := first.Asked(), second.Asked()
			if len(q1) != 1 || len(q2) != 1 || q1[0].Key != q2[0].Key || !strings.Contains(string(got), `"id":"q"`) {
				t.Errorf("questions %+v and %+v, the server got %s", q1, q2, got)
			}
		})
	}
}

// A checkpoint from behind a question has it, also before it is put to the client.
func TestCheckpointBehindAQuestion(t *testing.T) {
	bubble(t, fake.Stateful, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
		var got json.RawMessage
		s.Tool("t", func(x *fake.Exchange) {
			progress := x.Fill(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":{token},"progress":1}}`)
			asking(&got, func(send func(string)) { send(progress) })(x)
		})
		r := in("a", all)
		first := silent()
		detach(t, h, r, first, time.Second)
		for _, p := range first.Checkpoints()[1:] {
			if c, ok := decodeResumable(p); ok && c.Asked > 0 && len(c.Pending) == 0 {
				t.Errorf("a checkpoint has lost the question: %s", p)
			}
		}
		said, _ := first.Heard()
		if len(said) != 1 || said[0].Checkpoint == nil {
			t.Fatalf("no progress with a checkpoint: %+v", said)
		}
		second := &shimtest.Sink{OnAsk: answering}
		o := another(t, h)
		ctx, stop := context.WithTimeout(t.Context(), time.Minute)
		defer stop()
		reply, err := o.Resume(ctx, r, said[0].Checkpoint, second)
		checkKind(t, reply, err, "", 0)
		if len(second.Asked()) != 1 || !strings.Contains(string(got), `"id":"q"`) {
			t.Errorf("asked %+v, the server got %s", second.Asked(), got)
		}
	})
}

// A checkpoint that is handed over while a question is heard is from before its event, or has it.
func TestCheckpointWhileAQuestionIsHeard(t *testing.T) {
	var sink shimtest.Sink
	known, _ := lru.New[string, struct{}](1) // fails only for size 0
	x := &exchange{
		to: target{era: mcp.Legacy}, calls: &sessionCalls{claimed: known}, sink: &sink,
		caller: shim.Session{Capabilities: json.RawMessage(all)}, checkpoints: newCheckpointer(&sink, slog.New(slog.DiscardHandler), checkpoint{}),
	}
	x.asking.x, x.res.x = x, x
	ask := jsonrpc.Message{Kind: jsonrpc.Request, ID: jsonrpc.StringID("q"), Method: mcp.MethodElicit, Params: []byte(elicit)}
	x.asking.mu.Lock() // as an earlier question does that is settled now
	handled := make(chan error)
	go func() {
		_, err := x.handleEvent(t.Context(), &transport.Event{Message: ask, ID: "e1", HasID: true})
		handled <- err
	}()
	for !known.Contains(ask.ID.Key()) {
		runtime.Gosched()
	}
	x.checkpoints.saveCheckpoint(t.Context())
	x.asking.mu.Unlock()
	must(t, <-handled)
	x.checkpoints.saveCheckpoint(t.Context())
	for _, p := range sink.Checkpoints() {
		if c, _ := decodeResumable(p); c.Last == "e1" && len(c.Pending) == 0 {
			t.Errorf("a checkpoint has lost the question: %s", p)
		}
	}
	var c checkpoint
	if err := json.Unmarshal(sink.Latest(), &c); err != nil || c.Last != "e1" || len(c.Pending) != 1 {
		t.Errorf("the last checkpoint is %s (%v)", sink.Latest(), err)
	}
}

// A replica that resumes a call knows the server too, for all who ask it meanwhile, also
// where replicas share sessions. The call, and what comes after it, goes on in its session.
func TestResumeDescribes(t *testing.T) {
	for name, shares := range map[string]bool{"a key": false, "a shared session": true} {
		t.Run(name, func(t *testing.T) {
			var c Config
			shared := newSharedMap()
			if shares {
				c.Sessions = shared
			}
			bubble(t, fake.Stateful, c, func(t *testing.T, s *fake.Server, h *ServerClient) {
				s.Tool("t", steps(5, 0, 0))
				r := in("a", ``)
				r.Session.Shared = shares
				want, err := h.Describe(t.Context(), r.Session)
				if err != nil || len(want.Capabilities) == 0 {
					t.Fatalf("%+v, %v", want, err)
				}
				cp := detach(t, h, r, &shimtest.Sink{}, 2500*time.Millisecond)
				o := another(t, h)
				if shares {
					o.wire.cfg.Sessions = shared
				}
				done := make(chan error, 1)
				go func() {
					_, err := o.Resume(t.Context(), r, cp, nil)
					done <- err
				}()
				synctest.Wait()
				for range 2 {
					got, err := o.Describe(t.Context(), r.Session)
					if err != nil || string(got.Raw) != string(want.Raw) || string(got.Capabilities) != string(want.Capabilities) {
						t.Errorf("%+v, %v", got, err)
					}
				}
				check(t, <-done)
				mustCall(t, o, r)
				synctest.Wait()
				asked(t, s, "initialize", 2)
				asked(t, s, "DELETE", 1)
			})
		})
	}
}
