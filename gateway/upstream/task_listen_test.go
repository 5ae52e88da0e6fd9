package upstream

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"taskgate/internal/schematest"
	"taskgate/shim"
	"taskgate/shim/shimtest/fake"
)

// rarely is what a task has that wants to be asked once in a while.
const rarely = `"ttlMs":null,"pollIntervalMs":30000`

// heard makes a modern server with one tool "t" that it runs as a task, and tells of.
func heard(t *testing.T, c Config, wants string, script func(*fake.Job), run func(t *testing.T, s *fake.Server, tasks *fake.Tasks, h *HTTP)) {
	t.Helper()
	bubble(t, fake.Modern, c, func(t *testing.T, s *fake.Server, h *HTTP) {
		tasks := fake.TaskExtension(s, fake.TaskTool{Name: "t", Support: "required", First: func(j *fake.Job) { j.Wants(wants) }, Script: script})
		tasks.Listens()
		run(t, s, tasks, h)
		pauseFor(t, maxRetry+2*listenEvery) // it may have been away
		synctest.Wait()
		h.listeners.mu.Lock()
		defer h.listeners.mu.Unlock()
		if n, left := tasks.Listening(), len(h.listeners.of); n != 0 || left != 0 {
			t.Errorf("%d subscriptions are open, %d listeners are left", n, left)
		}
	})
}

// took is how long a call takes that has to succeed.
func took(t *testing.T, h *HTTP, r shim.Request) time.Duration {
	t.Helper()
	began := time.Now()
	if reply, err := h.Call(t.Context(), r, nil); err != nil || reply.Error != nil {
		t.Errorf("%+v, %v", reply.Error, err)
	}
	return time.Since(began)
}

// The end of a task is heard at once, however rarely the server wants to be asked, and a task
// that is quiet is asked for rarely, however often the server would allow it.
func TestTaskHeard(t *testing.T) {
	for _, c := range []struct {
		wants         string
		after         time.Duration
		with, without int // requests about the task, if it is listened to and if not
		late          time.Duration
	}{
		{rarely, 10*time.Second + time.Millisecond, 2, 1, 20 * time.Second},
		{`"ttlMs":null,"pollIntervalMs":1000`, 10*time.Minute + 500*time.Millisecond, 16, 601, 500 * time.Millisecond},
	} {
		for _, listens := range []bool{true, false} {
			heard(t, Config{}, c.wants, after(c.after, complete), func(t *testing.T, s *fake.Server, _ *fake.Tasks, h *HTTP) {
				want, most, subscribed := c.with, 10*time.Millisecond, 1
				if !listens {
					want, most, subscribed = c.without, c.late, 0
					h.listeners.deaf = time.Now().Add(time.Hour)
				}
				late := took(t, h, in("a", ``)) - c.after
				if n, l := len(s.Seen("tasks/get")), len(s.Seen("subscriptions/listen")); n != want || l != subscribed || late > most {
					t.Errorf("%s, listening: %v: %d tasks/get, want %d; %d subscriptions; %v late", c.wants, listens, n, want, l, late)
				}
			})
		}
	}
}

// What a task says and asks is heard at once, and the answer's effect is looked for.
func TestTaskHeardMeanwhile(t *testing.T) {
	heard(t, Config{}, rarely, func(j *fake.Job) {
		<-time.After(time.Second + time.Millisecond)
		j.Say("step 1")
		<-time.After(time.Second)
		j.Await(j.Input("q", "elicitation/create", elicit))
		complete(j)
	}, func(t *testing.T, s *fake.Server, _ *fake.Tasks, h *HTTP) {
		sink := &markSink{}
		sink.OnAsk = answering
		began := time.Now()
		if _, err := h.Call(t.Context(), askedCall("a"), sink); err != nil {
			t.Fatal(err)
		}
		progress, _ := sink.Heard()
		if len(progress) != 1 || progress[0].Message != "step 1" || len(sink.Asked()) != 1 || time.Since(began) > 3*time.Second {
			t.Errorf("heard %+v, asked %d times, after %v", progress, len(sink.Asked()), time.Since(began))
		}
		if n := len(s.Seen("tasks/get")); n > 5 {
			t.Errorf("%d tasks/get", n)
		}
		listen := s.Seen("subscriptions/listen")
		if len(listen) != 1 {
			t.Fatalf("%d subscriptions", len(listen))
		}
		schematest.Validate(t, "2026-07-28", "SubscriptionsListenRequest", listen[0].Message)
		if !strings.Contains(string(listen[0].Params), `clientCapabilities":{"extensions":{"io.modelcontextprotocol/tasks":{}}}`) {
			t.Errorf("declared in %s", listen[0].Params) // T7, and no more
		}
	})
}

// A server that changes its task all the time is not asked more than ten times per second.
func TestTaskHeardTooOften(t *testing.T) {
	heard(t, Config{}, rarely, func(j *fake.Job) {
		for i := range 1000 {
			<-time.After(10 * time.Millisecond)
			j.Say(fmt.Sprint("step ", i))
		}
		complete(j)
	}, func(t *testing.T, s *fake.Server, _ *fake.Tasks, h *HTTP) {
		took(t, h, in("a", ``))
		if n := len(s.Seen("tasks/get")); n < 90 || n > 101 {
			t.Errorf("%d tasks/get in 10 s", n)
		}
	})
}

// All tasks of a session are in one subscription, which is renewed at most once per second; each
// session has its own.
func TestTasksShareASubscription(t *testing.T) {
	heard(t, Config{}, rarely, after(20*time.Second, complete), func(t *testing.T, s *fake.Server, tasks *fake.Tasks, h *HTTP) {
		var calls sync.WaitGroup
		call := func(key string) {
			calls.Go(func() {
				if late := took(t, h, in(key, ``)) - 20*time.Second; late > 10*time.Millisecond {
					t.Errorf("%v late", late)
				}
			})
		}
		call("other")
		for range 500 { // over 5 s
			call("a")
			pauseFor(t, 10*time.Millisecond)
		}
		pauseFor(t, 2*time.Second)
		if n := tasks.Listening(); n != 2 {
			t.Errorf("%d subscriptions are open, want one for each session", n)
		}
		calls.Wait()
		if n := len(s.Seen("subscriptions/listen")); n > 1+7 {
			t.Errorf("%d subscriptions for 500 tasks in 5 s", n)
		}
		if n := len(s.Seen("tasks/get")); n != 2*501 { // once it is listened to, and at its end
			t.Errorf("%d tasks/get", n)
		}
	})
}

// What is new in a task before it is listened to is not missed.
func TestTaskIsLookedAtOnceItIsHeard(t *testing.T) {
	heard(t, Config{}, rarely, after(100*time.Millisecond, complete), func(t *testing.T, s *fake.Server, _ *fake.Tasks, h *HTTP) {
		if d := took(t, h, in("a", ``)); d > listenAfter+10*time.Millisecond || len(s.Seen("tasks/get")) != 1 {
			t.Errorf("it took %v, and %d tasks/get", d, len(s.Seen("tasks/get")))
		}
	})
}

// A task that ends before its session's tasks have gathered costs no subscription.
func TestQuickTaskIsNotListenedTo(t *testing.T) {
	heard(t, Config{}, `"ttlMs":null,"pollIntervalMs":100`, after(50*time.Millisecond, complete), func(t *testing.T, s *fake.Server, _ *fake.Tasks, h *HTTP) {
		for range 10 {
			took(t, h, in("a", ``))
			pauseFor(t, time.Second)
		}
		if n := len(s.Seen("subscriptions/listen")); n != 0 {
			t.Errorf("%d subscriptions", n)
		}
	})
}

// A server that lets nobody listen to its tasks is polled, and not asked again for a while.
func TestTasksNotHeard(t *testing.T) {
	const every = `"ttlMs":null,"pollIntervalMs":1000`
	ack := func(ids string) fake.Behaviour {
		return func(x *fake.Exchange) {
			x.Event(`{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":` + string(x.ID) + `},"notifications":{` + ids + `}}}`)
			x.Hang()
		}
	}
	for name, c := range map[string]struct {
		answer fake.Behaviour
	}{
		"no such method":      {fake.RPCError(404, -32601, "method not found", "")},
		"invalid params":      {fake.RPCError(200, -32602, "no such notification", "")},
		"forbidden":           {fake.Status(403, "", "")},
		"nothing is honoured": {ack(``)},
		"another task is":     {ack(`"taskIds":[]`)},
		"nothing is said":     {func(x *fake.Exchange) { x.Comment(); x.Hang() }},
		"an answer at once":   {fake.Result(`{"resultType":"complete"}`)},
	} {
		t.Run(name, func(t *testing.T) {
			heard(t, Config{}, every, after(time.Minute+500*time.Millisecond, complete), func(t *testing.T, s *fake.Server, _ *fake.Tasks, h *HTTP) {
				s.On("subscriptions/listen", c.answer)
				for range 3 {
					if late := took(t, h, in("a", ``)) - time.Minute; late != time.Second {
						t.Errorf("it took a minute and %v", late)
					}
				}
				if n, l := len(s.Seen("tasks/get")), len(s.Seen("subscriptions/listen")); n != 3*61 || l != 1 {
					t.Errorf("%d tasks/get, %d subscriptions", n, l)
				}
				pauseFor(t, listenAgain)
				took(t, h, in("a", ``))
				if l := len(s.Seen("subscriptions/listen")); l != 2 {
					t.Errorf("%d subscriptions after a while", l)
				}
			})
		})
	}
}

// A server that confirms a subscription and tells nothing is found out: what is new is seen
// after at most twice the time, and once a minute.
func TestTaskHeardNothing(t *testing.T) {
	heard(t, Config{}, `"ttlMs":null,"pollIntervalMs":1000`, after(5*time.Second, complete), func(t *testing.T, _ *fake.Server, tasks *fake.Tasks, h *HTTP) {
		tasks.Mute()
		if d := took(t, h, in("a", ``)); d > 10*time.Second {
			t.Errorf("a task of 5 s took %v", d)
		}
	})
}

// A subscription that breaks has all tasks looked at, and is taken up again; a task that the
// server leaves out is polled.
func TestTaskSubscriptionBreaks(t *testing.T) {
	heard(t, Config{}, rarely, after(10*time.Second+time.Millisecond, complete), func(t *testing.T, s *fake.Server, tasks *fake.Tasks, h *HTTP) {
		time.AfterFunc(5*time.Second, tasks.CutListening)
		time.AfterFunc(5*time.Second+50*time.Millisecond, func() {
			if n := len(s.Seen("tasks/get")); n != 2 {
				t.Errorf("%d tasks/get after the break", n)
			}
		})
		if d := took(t, h, in("a", ``)); d > 10*time.Second+20*time.Millisecond {
			t.Errorf("it took %v", d)
		}
		if n := len(s.Seen("subscriptions/listen")); n != 2 {
			t.Errorf("%d subscriptions", n)
		}
	})
	heard(t, Config{}, `"ttlMs":null,"pollIntervalMs":1000`, after(time.Hour, complete), func(t *testing.T, s *fake.Server, _ *fake.Tasks, h *HTTP) {
		s.On("subscriptions/listen", fake.Status(502, "", ""))
		took(t, h, in("a", ``))
		if n, l := len(s.Seen("tasks/get")), len(s.Seen("subscriptions/listen")); n < 3600 || l < 60 || l > 120 {
			t.Errorf("%d tasks/get, %d subscriptions in an hour", n, l)
		}
	})
	heard(t, Config{}, `"ttlMs":null,"pollIntervalMs":1000`, after(time.Hour, complete), func(t *testing.T, s *fake.Server, _ *fake.Tasks, h *HTTP) {
		s.On("subscriptions/listen", func(x *fake.Exchange) { // it ends each subscription after its confirmation
			x.Event(`{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{"notifications":{"taskIds":["job-1"]}}}`)
			x.Event(x.Result(`{"resultType":"complete"}`))
		})
		took(t, h, in("a", ``))
		if n, l := len(s.Seen("tasks/get")), len(s.Seen("subscriptions/listen")); n > 3900 || l < 60 || l > 120 {
			t.Errorf("%d tasks/get, %d subscriptions in an hour", n, l)
		}
	})
}

// A call that is given up or let go of leaves its subscription.
func TestTaskSubscriptionLeft(t *testing.T) {
	heard(t, Config{}, rarely, (*fake.Job).Cancelled, func(t *testing.T, _ *fake.Server, tasks *fake.Tasks, h *HTTP) {
		for _, why := range []error{shim.ErrDetached, errors.New("cancelled")} {
			sink := &markSink{}
			ctx, cancel := context.WithCancelCause(t.Context())
			time.AfterFunc(5*time.Second, func() { cancel(why) })
			time.AfterFunc(4*time.Second, func() {
				if n := tasks.Listening(); n != 1 {
					t.Errorf("%d subscriptions", n)
				}
			})
			if _, err := h.Call(ctx, in("a", ``), sink); !errors.Is(err, why) {
				t.Errorf("error %v", err)
			}
			synctest.Wait()
			if n := tasks.Listening(); n != 0 {
				t.Errorf("%d subscriptions are left", n)
			}
		}
	})
}

// A client that closes ends its subscriptions.
func TestTaskSubscriptionClosed(t *testing.T) {
	heard(t, Config{}, rarely, after(10*time.Second, complete), func(t *testing.T, _ *fake.Server, tasks *fake.Tasks, h *HTTP) {
		done := make(chan error, 1)
		go func() { _, err := h.Call(t.Context(), in("a", ``), nil); done <- err }()
		pauseFor(t, time.Second)
		if n := tasks.Listening(); n != 1 {
			t.Errorf("%d subscriptions", n)
		}
		if err := h.Close(t.Context()); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if n := tasks.Listening(); n != 0 {
			t.Errorf("%d subscriptions are left", n)
		}
		<-done // a call belongs to its caller
	})
}
