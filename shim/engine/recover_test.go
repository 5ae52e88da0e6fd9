package engine_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"taskgate/shim"
	"taskgate/shim/engine"
)

// dies is a gateway whose process is gone: its loops and writes end, nothing is
// said to anybody.
func (w *world) dies(name string, u shim.Upstream, p shim.Policy) shim.Task {
	w.t.Helper()
	return w.diesWith(name, u, p, 1)[0]
}

// diesWith is dies with n tasks.
func (w *world) diesWith(name string, u shim.Upstream, p shim.Policy, n int) []shim.Task {
	w.t.Helper()
	s := w.still(name, serves(u, p), nil)
	var tasks []shim.Task
	for range n {
		tasks = append(tasks, begin(w.t, s, call()))
	}
	pass(time.Second)
	w.mute(s)
	return tasks
}

// mute closes a Shim without letting its goodbye reach the store.
func (w *world) mute(s *engine.Shim) {
	w.store.down.Store(true)
	ctx, stop := context.WithTimeout(context.Background(), time.Millisecond)
	defer stop()
	if err := s.Close(ctx); !errors.Is(err, shim.ErrUnavailable) {
		w.t.Errorf("close: %v", err)
	}
	w.store.down.Store(false)
}

// The ladder of design.md 0.5, and how the replica that takes over counts it. The policy that a task was
// made under decides what may be done with it, and not that of the replica that takes it over: the record
// of a task that may not run again has no arguments.
func TestTasksOfALostReplica(t *testing.T) {
	const lost = "the replica that ran this call was lost; the upstream may have finished the work"
	retry, always := policy(shim.Always), policy(shim.Always)
	retry.Retry = true
	ifMarked := retry
	ifMarked.IfRepeatable = true
	marked := func(is bool) *scripted {
		return &scripted{call: func(ctx context.Context, r shim.Request, s shim.Sink) (shim.Reply, error) {
			if !r.IfRepeatable || !is {
				return shim.Reply{}, shim.ErrNotRepeatable
			}
			return after(ctx, time.Second)
		}}
	}
	resumes := func(ctx context.Context, _ shim.Request, _ json.RawMessage, _ shim.Sink) (shim.Reply, error) {
		return after(ctx, 5*time.Second)
	}
	neverSent := &scripted{call: func(ctx context.Context, _ shim.Request, _ shim.Sink) (shim.Reply, error) {
		return after(ctx, time.Hour) // waits before it has said that it sends
	}}
	for name, c := range map[string]struct {
		first         *scripted
		made, adopted shim.Policy
		second        *scripted
		message       string // of the failure, "" for none
		calls         int64  // by the second replica
		counted       string // the recoveries
	}{
		"resumed":          {takes(time.Hour), always, always, &scripted{resume: resumes}, "", 0, "resumed"},
		"never sent":       {neverSent, policy(shim.Required), always, takes(time.Second), "", 1, "sent"},
		"perhaps sent":     {neverSent, always, always, takes(time.Second), lost, 0, "lost"},
		"lost":             {takes(time.Hour), always, always, takes(time.Second), lost, 0, "resumed lost"},
		"owner's retry":    {takes(time.Hour), retry, retry, takes(time.Second), "", 1, "resumed retried"},
		"marked":           {takes(time.Hour), ifMarked, always, marked(true), "", 1, "resumed retried"},
		"no longer marked": {takes(time.Hour), ifMarked, always, marked(false), lost, 1, "resumed retried lost"},
		"made under fail":  {takes(time.Hour), always, retry, takes(time.Second), lost, 0, "resumed lost"},
		"made under retry": {takes(time.Hour), retry, always, takes(time.Second), "", 1, "resumed retried"},
	} {
		bubbleOf(t, name, func(t *testing.T, w *world) {
			b, r := w.measured("b", c.second, c.adopted)
			pass(6 * time.Second) // beats without a miss
			task := w.dies("a", c.first, c.made)
			pass(7500*time.Millisecond - time.Second) // takeover within 1.5 heartbeats
			pass(2 * time.Second)
			if name == "resumed" {
				if age := r.Points()["taskgate.tasks.oldest_age"+ofSlow]; age < 6 || age > 10 {
					t.Errorf("the age of a task that was taken over is %v", age)
				}
				pass(4 * time.Second)
			}
			got := read(t, b, task.ID)
			want := map[string]float64{"taskgate.task.adoptions" + ofUp: 1, unknownOutcomes: 0, working: 0, durationOf + "completed" + ofUp: 1}
			if c.message != "" {
				wantStatus(t, got, shim.Failed)
				want[unknownOutcomes], want[durationOf+"unknown"+ofUp] = 1, 1
				delete(want, durationOf+"completed"+ofUp)
			} else {
				wantStatus(t, got, shim.Completed)
			}
			if got.StatusMessage != c.message || c.second.calls.Load() != c.calls {
				t.Errorf("message %q, %d calls", got.StatusMessage, c.second.calls.Load())
			}
			for _, how := range []string{"resumed", "sent", "lost", "retried"} {
				want["taskgate.task.recoveries taskgate.recovery="+how+ofUp] = float64(strings.Count(c.counted, how))
			}
			r.Want(want)
		})
	}
}

// TestRetriedCallIsTheSame: the next replica's server gets what the first one got, also what the client
// left out.
func TestRetriedCallIsTheSame(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		retry := policy(shim.Always)
		retry.Retry = true
		var got []shim.Request
		notes := func(d time.Duration) *scripted {
			u := takes(d)
			call := u.call
			u.call = func(ctx context.Context, r shim.Request, s shim.Sink) (shim.Reply, error) {
				got = append(got, r)
				return call(ctx, r, s)
			}
			return u
		}
		w.gateway("b", notes(time.Second), retry)
		pass(6 * time.Second)
		w.dies("a", notes(time.Hour), retry)
		pass(10 * time.Second)
		if len(got) != 2 || !reflect.DeepEqual(got[0], got[1]) {
			t.Errorf("sent %+v", got)
		}
	})
}

// A task keeps the timeout under which it was made, also at a replica with another one.
func TestTimeoutOfATask(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		before, after := policy(shim.Always), policy(shim.Always)
		before.Timeout, after.Timeout = 10*time.Minute, time.Minute
		b := w.gateway("b", resumable(2*time.Minute), after) // longer than each adopted task may take
		pass(6 * time.Second)
		task := w.dies("a", takes(time.Hour), before)
		pass(10*time.Second + 2*time.Minute)
		wantStatus(t, read(t, b, task.ID), shim.Completed)
	})
}

func TestRetriesAreBounded(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		retry := policy(shim.Always)
		retry.Retry = true
		task := w.dies("a", takes(time.Hour), retry)
		for _, name := range []string{"b", "c"} {
			u := takes(time.Hour)
			s := w.still(name, serves(u, retry), nil)
			stop := run(s)
			pass(15 * time.Second)
			if u.calls.Load() != 1 {
				t.Fatalf("%s: %d calls", name, u.calls.Load())
			}
			stop()
			w.mute(s)
		}
		u := takes(time.Second)
		d := w.gateway("d", u, retry)
		pass(15 * time.Second)
		wantStatus(t, read(t, d, task.ID), shim.Failed)
		if u.calls.Load() != 0 {
			t.Error("run a fourth time")
		}
	})
}

// A runner that was given up for dead and comes back detaches: it neither writes
// nor tells the upstream anything.
func TestAdoptedRunnerLetsGo(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		old := takes(time.Hour)
		a := w.gateway("a", old, policy(shim.Always))
		task := begin(t, a, call())
		pass(10 * time.Second)
		// By the store's judgement a is gone: it says goodbye without knowing it.
		must(t, w.store.Beat(t.Context(), "a", 0))
		adopted, err := w.store.Adopt(t.Context(), "z", []string{"up"}, 10)
		if err != nil || len(adopted) != 1 || adopted[0].ID != task.ID {
			t.Fatalf("adopted %+v, %v", adopted, err)
		}
		pass(time.Second)
		if err := old.ended(); !errors.Is(err, shim.ErrDetached) {
			t.Errorf("the old call ended with %v, want ErrDetached", err)
		}
		wantStatus(t, read(t, a, task.ID), shim.Working)
	})
}

// An outage of the store silences every replica. When it is over, whoever beats first, nobody takes anything from
// anybody: a heartbeat that expired meanwhile is none of a replica that is gone.
func TestOutageOrphansNobody(t *testing.T) {
	for outage, times := range map[time.Duration]int{
		2 * time.Second: 4, 4 * time.Second: 4, 5 * time.Second: 4, 6 * time.Second: 4, // at any moment between two beats
		10 * time.Minute: 1,
	} {
		bubbleOf(t, outage.String(), func(t *testing.T, w *world) {
			ua, ub := takes(time.Hour), takes(time.Hour)
			a := w.gateway("a", ua, policy(shim.Always))
			pass(800 * time.Millisecond)
			b := w.gateway("b", ub, policy(shim.Always))
			pass(10 * time.Second)
			begin(t, a, call())
			begin(t, b, call())
			for range times {
				w.store.down.Store(true)
				pass(outage)
				w.store.down.Store(false)
				pass(10*time.Second + 420*time.Millisecond)
			}
			if ua.ended() != nil || ub.ended() != nil {
				t.Errorf("calls ended: %v, %v", ua.ended(), ub.ended())
			}
		})
	}
}

// That tasks are out of reach is logged once, until they are not, and not with every
// heartbeat.
func TestHinderedAdoptionIsLoggedOnce(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		var hindered atomic.Bool
		store := &hooked{Store: w.store, adopt: func(ctx context.Context, next func(context.Context) ([]shim.Task, error)) ([]shim.Task, error) {
			if hindered.Load() {
				return nil, errDown
			}
			return next(ctx)
		}}
		var log bytes.Buffer
		w.gatewayOf("a", shim.Server{}, func(o *engine.Options) { o.Store, o.Logger = store, slog.New(slog.NewTextHandler(&log, nil)) })
		for range 2 {
			hindered.Store(true)
			pass(time.Minute)
			hindered.Store(false)
			pass(time.Minute)
		}
		w.close()
		for _, text := range []string{"could not be adopted", "can be adopted again"} {
			if n := strings.Count(log.String(), text); n != 2 {
				t.Errorf("%q is logged %d times:\n%s", text, n, log.String())
			}
		}
	})
}

// TestAuditBesideAHinderedAdoption: a cancellation whose event is lost is found by the audit within 30 s,
// also while each adoption waits in vain.
func TestAuditBesideAHinderedAdoption(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		var away atomic.Bool // nothing is heard, and an adoption gets no answer
		h := &hooked{drop: func(shim.Event) bool { return away.Load() }}
		h.adopt = func(ctx context.Context, next func(context.Context) ([]shim.Task, error)) ([]shim.Task, error) {
			if away.Load() {
				<-ctx.Done()
				return nil, shim.ErrUnavailable
			}
			return next(ctx)
		}
		u := takes(time.Hour)
		a := w.over("a", h, u, policy(shim.Always))
		pass(10 * time.Second)
		task := begin(t, a, call())
		away.Store(true)
		pass(10 * time.Second)
		message := "cancelled"
		must(t, errorOf(w.store.Apply(t.Context(), task.ID, nil, shim.Change{Op: "x", To: shim.Cancelled, StatusMessage: &message})))
		pass(30 * time.Second)
		if u.ended() == nil {
			t.Error("the call goes on")
		}
		away.Store(false)
	})
}

// TestRefusedTaskThatIsStored: a client that insists on a task, whose creation got through without a
// reply, hears that the call may be made, since the next replica makes it.
func TestRefusedTaskThatIsStored(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		second := takes(time.Second)
		w.gateway("b", second, policy(shim.Auto))
		pass(6 * time.Second)
		a := w.still("a", serves(takes(time.Hour), policy(shim.Auto)), func(o *engine.Options) {
			o.Store = &hooked{Store: w.store, create: func(ctx context.Context, next func(context.Context) (shim.Task, error)) (shim.Task, error) {
				_, _ = next(ctx) // it gets through, and the store breaks before it says so
				w.store.down.Store(true)
				return shim.Task{}, errDown
			}}
		})
		c := call()
		c.Demand = true
		if _, err := a.Call(t.Context(), c); !errors.Is(err, shim.ErrUnconfirmed) || !errors.Is(err, shim.ErrUnavailable) {
			t.Errorf("the client got %v", err)
		}
		w.mute(a)
		pass(20 * time.Second)
		if n := second.calls.Load(); n != 1 {
			t.Errorf("called %d times by the other replica", n)
		}
	})
}

// TestRefusedTaskAtASilentStore: the same where the store is silent. Where the replica could not
// even say that it is alive, no task was begun, and the client may simply call again.
func TestRefusedTaskAtASilentStore(t *testing.T) {
	for _, beats := range []bool{true, false} {
		bubbleOf(t, fmt.Sprintf("beats=%t", beats), func(t *testing.T, w *world) {
			w.store.down.Store(!beats)
			a := w.gateway("a", takes(time.Second), policy(shim.Auto))
			pass(time.Second)
			c := call()
			c.Demand = true
			w.store.stalled.Store(true)
			_, err := a.Call(t.Context(), c)
			if !errors.Is(err, shim.ErrUnavailable) || errors.Is(err, shim.ErrUnconfirmed) != beats {
				t.Errorf("the client got %v", err)
			}
			w.store.stalled.Store(false)
			w.store.down.Store(false)
			pass(time.Minute)
		})
	}
}

// A creation whose reply was lost leaves a record behind, and the call goes out
// without a task. Whoever adopts that record must not take it for a call that was
// never sent.
func TestRecordOfALostReplyIsNotSentAgain(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		first, second := takes(time.Hour), takes(time.Second)
		b := w.gateway("b", second, policy(shim.Always))
		pass(6 * time.Second)
		a := w.still("a", serves(first, policy(shim.Always)), nil)
		c := call()
		c.Principal = shim.Principal{Subject: "ann"}
		w.store.deaf.Store(true)
		ended := make(chan error, 1)
		go func() {
			_, err := a.Call(context.Background(), c)
			ended <- err
		}()
		pass(500 * time.Millisecond)
		w.mute(a)
		w.store.deaf.Store(false)
		wantMayBeDone(t, <-ended, shutDown)
		pass(20 * time.Second)
		if first.calls.Load() != 1 || second.calls.Load() != 0 {
			t.Errorf("sent %d times, and %d times again", first.calls.Load(), second.calls.Load())
		}
		tasks, _, err := b.List(t.Context(), c.Principal, "up", "")
		if err != nil || len(tasks) != 1 || tasks[0].Status != shim.Failed {
			t.Errorf("%+v, %v: want the record of the lost reply, failed", tasks, err)
		}
	})
}
