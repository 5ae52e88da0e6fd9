package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"taskgate/gateway/config"
	"taskgate/gateway/endpoint"
	"taskgate/shim"
)

// fakeShim makes a task of a call only where the policy is always or required, and
// never runs it: a script moves its tasks.
type fakeShim struct {
	up     *fakeUpstream
	policy func(tool string) config.Tool

	mu    sync.Mutex
	tasks map[shim.ID]*fakeTask
	made  int
	fail  error // of every method
}

// fakeTask is a task as a script writes it.
type fakeTask struct {
	Status        shim.Status
	StatusMessage string
	Origin        string
	Owner         string
	Outcome       *shim.Outcome
	Questions     []shim.Question
	Created       time.Time
	Trace         map[string]string
	Partials      []json.RawMessage
	Behind        bool // its partials are gone
	Over          bool // it had ended before anybody followed it
}

var _ endpoint.Shim = (*fakeShim)(nil)

// fakeFailures are the errors that a script can ask for.
var fakeFailures = map[string]error{
	"unavailable": fmt.Errorf("redis: %w", shim.ErrUnavailable),
	"draining":    shim.ErrDraining,
	"busy":        &shim.BusyError{Limit: "tasks of this caller", RetryAfter: 2 * time.Second},
	"internal":    errors.New("secret text"),
}

type nullSink struct{ shim.Stream }

func (nullSink) Ask(context.Context, ...shim.Question) ([]shim.Answer, error) {
	return nil, shim.ErrNoAsk
}
func (nullSink) RoomToAsk(int) bool { return true }
func (nullSink) Withdraw(string)    {}
func (nullSink) Checkpoint(json.RawMessage) (stored func(context.Context) error) {
	return func(context.Context) error { return nil }
}

func (f *fakeShim) Outlast(ctx context.Context, do func(context.Context) error) error { return do(ctx) }

func (f *fakeShim) IsSlow(string) bool { return f.up.Slow }

// ResumeStream forgets: calls of this shim are not picked up.
func (*fakeShim) ResumeStream(context.Context, shim.Repeat) {}

func (f *fakeShim) AskSession(context.Context, shim.Call, json.RawMessage, func(shim.ID, bool)) (shim.ID, error) {
	return "", f.fail
}

func (f *fakeShim) Call(ctx context.Context, c shim.Call) (shim.Answered, error) {
	if f.fail != nil {
		return shim.Answered{}, f.fail
	}
	switch mode := f.policy(c.Request.Name).Tasks; {
	case mode == config.TasksRequired && !c.Handle:
		return shim.Answered{}, shim.ErrNeedsTask
	case c.Handle && (mode == config.TasksAlways || mode == config.TasksRequired):
		return f.make(c), nil
	}
	reply, err := f.up.Call(ctx, c.Request, nullSink{c.Stream})
	return shim.Answered{Reply: reply}, err
}

func (f *fakeShim) make(c shim.Call) shim.Answered {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.made++
	id := shim.ID(fmt.Sprintf("00000000-0000-4000-8000-%012d", f.made))
	f.tasks[id] = &fakeTask{Status: shim.Working, Origin: c.Origin, Created: time.Now()}
	f.up.note("task %s: %s %s%s\n", id, c.Request.Method, c.Request.Params, wishes(c.Request))
	t := f.tasks[id].task(id)
	return shim.Answered{Task: &t}
}

func (t *fakeTask) task(id shim.ID) shim.Task {
	return shim.Task{
		ID: id, Visible: true, Status: t.Status, StatusMessage: t.StatusMessage, Origin: t.Origin, Owner: t.Owner,
		Outcome: t.Outcome, Questions: t.Questions, CreatedAt: t.Created, UpdatedAt: t.Created,
		TTL: time.Hour, PollInterval: time.Second, Trace: t.Trace,
	}
}

func (f *fakeShim) Find(ctx context.Context, p shim.Principal, upstreams []string, id shim.ID) (shim.Task, error) {
	return f.Get(ctx, p, upstreams[0], id)
}

func (f *fakeShim) Get(_ context.Context, p shim.Principal, _ string, id shim.ID) (shim.Task, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fail != nil {
		return shim.Task{}, f.fail
	}
	t := f.tasks[id]
	if t == nil || t.Owner != p.Owner() {
		return shim.Task{}, shim.ErrNotFound
	}
	return t.task(id), nil
}

func (f *fakeShim) Peek(ctx context.Context, p shim.Principal, up string, id shim.ID) (shim.Task, error) {
	return f.Get(ctx, p, up, id)
}

func (f *fakeShim) Cancel(ctx context.Context, p shim.Principal, up string, id shim.ID) (shim.Task, error) {
	t, err := f.Get(ctx, p, up, id)
	if err == nil && t.Status.Final() {
		return t, shim.ErrFinal
	}
	if err == nil {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.tasks[id].Status = shim.Cancelled
	}
	return t, err
}

func (f *fakeShim) Update(ctx context.Context, p shim.Principal, up string, id shim.ID, answers map[string]json.RawMessage) error {
	t, err := f.Get(ctx, p, up, id)
	if err != nil {
		return err
	}
	if t.Status.Final() {
		return shim.ErrFinal
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, q := range f.tasks[id].Questions {
		if a, ok := answers[q.Key]; ok && q.Outstanding() {
			f.tasks[id].Questions[i].Answer = a
			f.up.note("answer %s: %s\n", q.Key, a)
		}
	}
	return nil
}

func (f *fakeShim) Reattach(context.Context, shim.Call, shim.ID, map[string]json.RawMessage) (shim.Answered, error) {
	return shim.Answered{}, shim.ErrNotFound
}

func (f *fakeShim) Answer(ctx context.Context, p shim.Principal, up string, id shim.ID, _ string, _ shim.Answer) error {
	_, err := f.Get(ctx, p, up, id)
	return err
}

func (f *fakeShim) Outstanding(ctx context.Context, p shim.Principal, up string, id shim.ID) ([]shim.Question, error) {
	t, err := f.Get(ctx, p, up, id)
	return t.Questions, err
}

func (f *fakeShim) List(context.Context, shim.Principal, string, string) ([]shim.Task, string, error) {
	return nil, "", nil
}

func (f *fakeShim) Wait(ctx context.Context, p shim.Principal, up string, id shim.ID, _ func(shim.Task)) (shim.Task, error) {
	return f.Get(ctx, p, up, id)
}

func (f *fakeShim) Track(ctx context.Context, p shim.Principal, up string, tasks []shim.Tracked, yield func(shim.Update) error) error {
	return f.NewSet(p, up, tasks...).Follow(ctx, yield)
}

// NewSet returns a set of tasks that is followed once.
func (f *fakeShim) NewSet(p shim.Principal, up string, tasks ...shim.Tracked) shim.Set {
	return &fakeSet{f: f, p: p, up: up, tasks: tasks}
}

type fakeSet struct {
	shim.Set
	f     *fakeShim
	p     shim.Principal
	up    string
	tasks []shim.Tracked
}

func (s *fakeSet) Add(tasks ...shim.Tracked) { s.tasks = append(s.tasks, tasks...) }
func (s *fakeSet) Close()                    {}

// Follow yields what there is once, with the partials of the script; a fake task only
// moves by its script.
func (s *fakeSet) Follow(ctx context.Context, yield func(shim.Update) error) error {
	f, p, up, tasks := s.f, s.p, s.up, s.tasks
	slices.SortFunc(tasks, func(a, b shim.Tracked) int { return strings.Compare(string(a.ID), string(b.ID)) })
	for _, k := range tasks {
		t, err := f.Get(ctx, p, up, k.ID)
		if err != nil {
			continue
		}
		all := f.tasks[k.ID].Partials
		switch first := min(k.From, int64(len(all))); {
		case k.Pieces && f.tasks[k.ID].Behind:
			err = shim.ErrBehind
		case k.Live && f.tasks[k.ID].Over:
		case k.Pieces && len(all[first:]) > 0:
			err = yield(shim.Update{ID: k.ID, Pieces: all[first:], First: first})
		}
		if err == nil {
			err = yield(shim.Update{ID: k.ID, Task: &t})
		}
		if err != nil {
			return err
		}
	}
	return nil
}
