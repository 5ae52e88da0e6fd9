package engine_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"taskgate/shim"
)

// task makes a call that is to become a task. It returns "" where the call was answered
// before one could be made.
func (w *faultWorld) task(r *replica, c shim.Call) shim.ID {
	w.Helper()
	var got shim.Answered
	over := w.client(func() {
		var err error
		if got, err = r.Call(w.ctx, c); err != nil && w.ctx.Err() == nil {
			w.Errorf("call: %v", err)
		}
	})
	w.wait("the call is answered", over)
	switch {
	case got.Task != nil:
	case got.Reply.Error != nil && w.forgets(): // before its caller knew of a task
		return ""
	case string(got.Reply.Result) != result:
		w.Fatalf("the call was answered %s, want a task or the result", got.Reply.Result)
		return ""
	default:
		return ""
	}
	w.tells(*got.Task)
	return got.Task.ID
}

func (w *faultWorld) isForgotten(id shim.ID) bool {
	_, is := w.forgotten(id)
	return is
}

// follows follows a task to its end, and hands each state to on, if not nil. A client who
// is told that there is no such task asks again; it may be only where the store has
// forgotten the task.
func (w *faultWorld) follows(r *replica, id shim.ID, on func(shim.Task)) (over func() bool) {
	return w.client(func() {
		ends := 0
		for id != "" && w.ctx.Err() == nil && ends == 0 {
			err := states(w.ctx, r.Shim, anyone, func(t shim.Task) error {
				w.tells(t)
				if t.Status.Final() {
					ends++
				}
				if on != nil {
					on(t)
				}
				return nil
			}, id)
			switch {
			case w.ctx.Err() != nil:
				return
			case err != nil:
				w.Errorf("follow: %v", err)
				return
			case ends > 1:
				w.Errorf("the end was told %d times", ends)
			case ends == 0 && w.unsaved(id):
				return
			case ends == 0 && !w.isForgotten(id):
				w.Error("follow returned without the end")
				return
			}
			<-time.After(time.Second)
		}
	})
}

// awaits waits for the end of a task.
func (w *faultWorld) awaits(r *replica, id shim.ID) (over func() bool) {
	return w.client(func() {
		for w.ctx.Err() == nil {
			var got shim.Task
			err := w.patiently(func() (err error) {
				got, err = r.Wait(w.ctx, anyone, "up", id, nil)
				return err
			})
			switch {
			case w.ctx.Err() != nil:
				return
			case errors.Is(err, shim.ErrNotFound) && w.unsaved(id):
			case errors.Is(err, shim.ErrNotFound) && w.isForgotten(id):
				<-time.After(time.Second)
				continue
			case err != nil:
				w.Errorf("wait: %v", err)
			default:
				w.tells(got)
			}
			return
		}
	})
}

// cancels cancels a task, and reports whether that was acknowledged.
func (w *faultWorld) cancels(r *replica, id shim.ID) (acknowledged bool) {
	var got shim.Task
	err := w.patiently(func() (err error) {
		got, err = r.Cancel(w.ctx, anyone, "up", id)
		return err
	})
	switch {
	case err == nil, errors.Is(err, shim.ErrFinal):
		w.tells(got)
		return got.Status == shim.Cancelled
	case errors.Is(err, shim.ErrNotFound) && w.isForgotten(id), w.ctx.Err() != nil:
	default:
		w.Errorf("cancel: %v", err)
	}
	return false
}

// answers answers the open questions of a task whenever it is told of some, delay later.
func (w *faultWorld) answers(r *replica, id shim.ID, delay time.Duration) (over func() bool) {
	return w.follows(r, id, func(t shim.Task) {
		if len(outstandingOf(t)) > 0 {
			w.client(func() {
				<-time.After(delay)
				w.update(r, id)
			})
		}
	})
}

// update answers the question of a task.
func (w *faultWorld) update(r *replica, id shim.ID) {
	err := w.patiently(func() error { return r.Update(w.ctx, anyone, "up", id, results("a")) })
	if err != nil && w.ctx.Err() == nil && !(errors.Is(err, shim.ErrNotFound) && w.isForgotten(id)) {
		w.Errorf("answer: %v", err)
	}
}

func outstandingOf(t shim.Task) []shim.Question {
	var open []shim.Question
	for _, q := range t.Questions {
		if q.Outstanding() {
			open = append(open, q)
		}
	}
	return open
}

// comesBack comes back to a parked call with the answers, until it has what became of it.
func (w *faultWorld) comesBack(r *replica, c shim.Call, id shim.ID) (got *shim.Answered, over func() bool) {
	got = &shim.Answered{}
	over = w.client(func() {
		for w.ctx.Err() == nil {
			var a shim.Answered
			err := w.patiently(func() (err error) {
				a, err = r.Reattach(w.ctx, c, id, results("a"))
				return err
			})
			switch {
			case w.ctx.Err() != nil:
			case errors.Is(err, shim.ErrNotFound) && w.isForgotten(id):
			case err != nil:
				w.Errorf("come back: %v", err)
			case a.Parked != nil: // the answers were lost, and are asked for again
				continue
			default:
				*got = a
			}
			return
		}
	})
	return got, over
}

// settled ends the scenario and checks how the task has ended, as every replica that is
// left sees it. No record of another one is left that nobody ends.
func (w *faultWorld) settled(id shim.ID, want ...shim.Status) {
	w.Helper()
	w.done()
	if w.mayFail(id) {
		want = append(want, shim.Failed)
	}
	for _, r := range w.replicas {
		if r.gone.Load() || id == "" || w.unsaved(id) {
			continue
		}
		got, err := r.Get(w.ctx, anyone, "up", id)
		if err != nil {
			w.Errorf("in the end, at %s: %v", r.name, err)
			continue
		}
		w.tells(got)
		if !strings.Contains(fmt.Sprint(want), string(got.Status)) {
			w.Errorf("in the end the task is %s (%s), want %s", got.Status, got.StatusMessage, want)
		}
		if got.Status == shim.Completed && string(got.Outcome.Result) != result {
			w.Errorf("in the end the result is %s", got.Outcome.Result)
		}
	}
	for other, fields := range tasksOf(w.memory.Snapshot()) {
		if !shim.Status(fields["status"]).Final() {
			w.Errorf("in the end the record %s is %s", other, fields["status"])
		}
	}
}

// streamed follows the pieces of a task to its end, and checks that each came once and
// in order.
func (w *faultWorld) streamed(r *replica, task shim.Tracked, want string) (over func() bool) {
	return w.client(func() {
		next, ends := int64(0), 0
		var all []string
		err := r.Track(w.ctx, anyone, "up", []shim.Tracked{task}, func(u shim.Update) error {
			if u.Task != nil {
				w.tells(*u.Task)
				if u.Task.Status.Final() {
					ends++
				}
			}
			for i, p := range u.Pieces {
				if u.First+int64(i) != next {
					w.Errorf("piece %d came, want %d", u.First+int64(i), next)
				}
				next++
				all = append(all, strings.Split(texts(p), "+")...)
			}
			return nil
		})
		switch got := strings.Join(all, " "); {
		case w.ctx.Err() != nil, w.isForgotten(task.ID):
		case err != nil:
			w.Errorf("track: %v", err)
		case ends != 1 || got != want:
			w.Errorf("%d ends, and the pieces were %q, want %q", ends, got, want)
		}
	})
}

// record reads the record of a task past all faults.
func (w *faultWorld) record(r *replica, id shim.ID) shim.Task {
	ctx, stop := context.WithTimeout(w.ctx, time.Second)
	defer stop()
	t, err := r.store.Get(ctx, id, shim.WithRun)
	if err != nil {
		return shim.Task{}
	}
	return t
}

// newest reports whether a record has the newest that a server said.
func newest(t shim.Task, s *server) bool {
	n := len(s.says)
	return t.StatusMessage == s.says[n-1].text && string(t.Checkpoint) == string(s.mark(n)) &&
		string(t.Progress.Params) == fmt.Sprintf(`{"progress":%d}`, n)
}

// wished is a call that becomes a task, whose client hears of its progress.
func wished() shim.Call {
	c := call()
	c.ProgressToken = json.RawMessage(`"mine"`)
	c.Request.Progress = true
	return c
}
