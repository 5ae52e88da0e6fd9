package gateway

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"net/http"
	"slices"

	"taskgate/gateway/auth"
	"taskgate/gateway/endpoint"
	"taskgate/shim"
)

// audit writes a record of each action of a caller on a task: caller, action, task. A record holds
// names and ids, and keeps questions and answers out. It stands between the handlers and the shim,
// so every handler has it. Actions of the gateway itself, such as the refusal of a question whose
// client has gone, have no caller and no record.
type audit struct {
	endpoint.Shim
	log *slog.Logger
}

// audited is a shim whose uses are recorded; without a logger it is the shim itself.
func audited(s endpoint.Shim, log *slog.Logger) endpoint.Shim {
	if log == nil {
		return s
	}
	return audit{s, log}
}

func (a audit) noteEvent(ctx context.Context, event string, p shim.Principal, upstream string, id shim.ID, more ...any) {
	if c, ok := auth.CallerOf(ctx); ok {
		more = append(append([]any{"upstream", upstream, "task", string(id)}, c.Names()...), more...)
		a.log.InfoContext(ctx, event, append([]any{"principal", p.Owner()}, more...)...)
	}
}

// noteTry notes that a caller has named a task that is unknown, or another caller's.
func (a audit) noteTry(ctx context.Context, p shim.Principal, upstream string, id shim.ID, err error) {
	if errors.Is(err, shim.ErrNotFound) {
		a.noteEvent(ctx, "unknown task", p, upstream, id)
	}
}

// giveAnswers gives answers, and notes that if one of these questions is open: other answers are ignored.
func (a audit) giveAnswers(ctx context.Context, p shim.Principal, upstream string, id shim.ID, keys []string, give func() error) error {
	open, _ := a.Outstanding(ctx, p, upstream, id) // the answer meets the same error
	asked := slices.ContainsFunc(open, func(q shim.Question) bool { return slices.Contains(keys, q.Key) })
	err := give()
	a.noteTry(ctx, p, upstream, id, err)
	if err == nil && asked {
		a.noteEvent(ctx, "question answered", p, upstream, id)
	}
	return err
}

// Call notes a call that has become a task.
func (a audit) Call(ctx context.Context, c shim.Call) (shim.Answered, error) {
	answered, err := a.Shim.Call(ctx, c)
	a.noteCreated(ctx, c, answered, err)
	return answered, err
}

// Reattach notes the answers to a call that waits for them, and a call that has become a task.
func (a audit) Reattach(ctx context.Context, c shim.Call, id shim.ID, answers map[string]json.RawMessage) (answered shim.Answered, err error) {
	err = a.giveAnswers(ctx, c.Principal, c.Upstream, id, slices.Collect(maps.Keys(answers)), func() (err error) {
		answered, err = a.Shim.Reattach(ctx, c, id, answers)
		return err
	})
	a.noteCreated(ctx, c, answered, err)
	return answered, err
}

func (a audit) noteCreated(ctx context.Context, c shim.Call, answered shim.Answered, err error) {
	if err == nil && answered.Task != nil {
		a.noteEvent(ctx, "task created", c.Principal, c.Upstream, answered.Task.ID, "tool", cmp.Or(c.Request.Shown, c.Request.Name))
	}
}

// Get notes that a result is read, and so do Wait, Set.Follow and Track.
func (a audit) Get(ctx context.Context, p shim.Principal, upstream string, id shim.ID) (shim.Task, error) {
	t, err := a.Shim.Get(ctx, p, upstream, id)
	a.noteTry(ctx, p, upstream, id, err)
	a.noteRead(ctx, p, t, err)
	return t, err
}

// Find is like Get.
func (a audit) Find(ctx context.Context, p shim.Principal, upstreams []string, id shim.ID) (shim.Task, error) {
	t, err := a.Shim.Find(ctx, p, upstreams, id)
	a.noteTry(ctx, p, upstreams[0], id, err)
	a.noteRead(ctx, p, t, err)
	return t, err
}

// Peek notes a try only: it reads no result.
func (a audit) Peek(ctx context.Context, p shim.Principal, upstream string, id shim.ID) (shim.Task, error) {
	t, err := a.Shim.Peek(ctx, p, upstream, id)
	a.noteTry(ctx, p, upstream, id, err)
	return t, err
}

// Wait is like Get.
func (a audit) Wait(ctx context.Context, p shim.Principal, upstream string, id shim.ID, seen func(shim.Task)) (shim.Task, error) {
	t, err := a.Shim.Wait(ctx, p, upstream, id, seen)
	a.noteTry(ctx, p, upstream, id, err)
	a.noteRead(ctx, p, t, err)
	return t, err
}

// NewSet is like Get for each task of the set that ends.
func (a audit) NewSet(p shim.Principal, upstream string, tasks ...shim.Tracked) shim.Set {
	return auditedSet{a.Shim.NewSet(p, upstream, tasks...), a, p}
}

// auditedSet is a Set whose reader is in the log.
type auditedSet struct {
	shim.Set
	audit audit
	p     shim.Principal
}

func (s auditedSet) Follow(ctx context.Context, yield func(shim.Update) error) error {
	return s.Set.Follow(ctx, s.audit.notingEnds(ctx, s.p, yield))
}

// Track is like Get for each task that ends.
func (a audit) Track(ctx context.Context, p shim.Principal, upstream string, tasks []shim.Tracked, yield func(shim.Update) error) error {
	return a.Shim.Track(ctx, p, upstream, tasks, a.notingEnds(ctx, p, yield))
}

func (a audit) notingEnds(ctx context.Context, p shim.Principal, yield func(shim.Update) error) func(shim.Update) error {
	return func(u shim.Update) error {
		err := yield(u)
		if u.Task != nil {
			a.noteRead(ctx, p, *u.Task, err)
		}
		return err
	}
}

func (a audit) noteRead(ctx context.Context, p shim.Principal, t shim.Task, err error) {
	if err == nil && t.Outcome != nil {
		a.noteEvent(ctx, "result read", p, t.Upstream, t.ID)
	}
}

// Cancel notes that a task is cancelled.
func (a audit) Cancel(ctx context.Context, p shim.Principal, upstream string, id shim.ID) (shim.Task, error) {
	t, err := a.Shim.Cancel(ctx, p, upstream, id)
	a.noteTry(ctx, p, upstream, id, err)
	if err == nil {
		a.noteEvent(ctx, "task cancelled", p, upstream, id)
	}
	return t, err
}

// Update notes answers to the questions of a task.
func (a audit) Update(ctx context.Context, p shim.Principal, upstream string, id shim.ID, results map[string]json.RawMessage) error {
	return a.giveAnswers(ctx, p, upstream, id, slices.Collect(maps.Keys(results)), func() error {
		return a.Shim.Update(ctx, p, upstream, id, results)
	})
}

// Answer notes the answer to one question.
func (a audit) Answer(ctx context.Context, p shim.Principal, upstream string, id shim.ID, key string, answer shim.Answer) error {
	return a.giveAnswers(ctx, p, upstream, id, []string{key}, func() error {
		return a.Shim.Answer(ctx, p, upstream, id, key, answer)
	})
}

// noteRefusal notes a request that was refused for its caller: the caller is unknown, or lacks a right.
func (u *route) noteRefusal(ctx context.Context, address string, c auth.Caller, f *auth.Refusal) {
	u.tel.CountRefused(ctx, u.endpoint.Name, c.Principal, address)
	if u.options.Audit == nil {
		return
	}
	event := "sign-in refused"
	if c.Principal.Owner() != "" && f.Status == http.StatusForbidden {
		event = "call refused"
	}
	attrs := []any{"principal", c.Principal.Owner(), "upstream", u.endpoint.Name, "address", address, "status", f.Status, "reason", f.Message}
	u.options.Audit.InfoContext(ctx, event, append(attrs, c.Names()...)...)
}
