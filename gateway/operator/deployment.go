package operator

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"taskgate/shim"
)

// maxShown is the longest result that Task shows, in bytes.
const maxShown = 1 << 20

// Deployment is the Source over a store that all replicas share.
type Deployment struct {
	o   DeploymentOptions
	due int64 // the first minute whose counts may have changed since they were stored
}

var _ Source = (*Deployment)(nil)

// Tasks implements Source.
func (d *Deployment) Tasks(ctx context.Context, q shim.Query) (Tasks, error) {
	found, next, err := d.o.Tasks.Search(ctx, q)
	page := Tasks{Tasks: make([]Task, len(found)), Next: next}
	for i, t := range found {
		page.Tasks[i] = taskOf(t)
	}
	return page, err
}

// Bounds of a list, in bytes: of each text that a client or a server chose, and of the questions.
const (
	maxText      = 1 << 10
	maxQuestions = 4 << 20
)

// cutText shortens a text to maxText at the end of a character.
func cutText(s string) string {
	if len(s) <= maxText {
		return s
	}
	return strings.ToValidUTF8(s[:maxText], "") + "…"
}

// taskOf is a task as a list shows it.
func taskOf(t shim.Task) Task {
	out := Task{
		ID: string(t.ID), Upstream: t.Upstream, Tool: cutText(cmp.Or(t.Tool, t.Method)), Status: string(t.State()), Message: cutText(t.StatusMessage),
		Principal: cutText(t.Owner), Replica: string(t.Lease.Replica), Hidden: !t.Visible, CreatedAt: t.CreatedAt, BegunAt: t.BegunAt(), UpdatedAt: t.UpdatedAt,
		ResultSize: t.OutcomeSize,
	}
	if kept := t.KeptUntil; !kept.IsZero() {
		out.KeptUntil = &kept
	}
	if t.Status.Final() {
		expires := t.ExpiresAt()
		out.ExpiresAt, out.Outcome = &expires, out.Status
		return out
	}
	for _, q := range t.Questions {
		if q.Outstanding() {
			out.Questions++
		}
	}
	return out
}

// Task implements Source.
func (d *Deployment) Task(ctx context.Context, id string, content bool) (TaskDetail, error) {
	t, err := d.o.Tasks.Read(ctx, shim.ID(id), shim.WithTimeline)
	if err == nil && (content || t.Status == shim.Failed) && t.OutcomeSize <= maxShown {
		t, err = d.o.Tasks.Read(ctx, t.ID, shim.WithAll)
	}
	if err != nil {
		return TaskDetail{}, err
	}
	out := TaskDetail{Task: taskOf(t), Events: make([]Event, len(t.Timeline)), TraceID: traceOf(t), ContentShown: content}
	for i, m := range t.Timeline {
		out.Events[i] = Event{At: m.At, Kind: string(m.Kind), Detail: m.Detail}
		if m.Kind == shim.KindPickedUp && t.KeptUntil.IsZero() {
			out.PickedUp = &PickedUp{At: m.At, Client: m.Detail, Principal: out.Principal}
		}
	}
	out.TraceURL = d.o.TraceAt(out.TraceID)
	out.RerunOf, out.RerunAs, out.Rerunnable = string(t.RerunOf), string(t.RerunAs), d.o.Tasks.RerunRefusal(t) == ""
	for _, q := range t.Questions {
		out.Asked = append(out.Asked, askedOf(q, content))
	}
	if content {
		out.TooLarge, out.Arguments = t.OutcomeSize > maxShown, d.o.Tasks.Arguments(t)
		if o := t.Outcome; o != nil {
			out.Result, out.Error = o.Result, o.Error
		}
	}
	return out, nil
}

// How far Totals counts tasks that have ended: each is read for that.
const (
	mostCounted = 5000
	countedAt   = 1000 // a time
)

// Totals implements Source. It counts all tasks that run, and the newest of those that have ended.
func (d *Deployment) Totals(ctx context.Context, q shim.Query) (Totals, error) {
	out := Totals{Counts: make(map[string]int)}
	q.Limit, q.Oldest = countedAt, false
	for _, states := range [][]shim.State{shim.OpenStates, shim.EndedStates} {
		q.States, q.Cursor = states, ""
		for n := 0; ; {
			found, next, err := d.o.Tasks.Search(ctx, q)
			if err != nil {
				return Totals{}, err
			}
			for _, t := range found {
				out.Counts[string(t.State())]++
			}
			n += len(found)
			if q.Cursor = next; next == "" {
				break
			}
			if states[0].Ended() && (n >= mostCounted || len(found) < countedAt) { // a search among many has stopped
				out.More = true
				break
			}
		}
	}
	return out, nil
}

// traceOf is the id of the trace of a task: the second part of its traceparent.
func traceOf(t shim.Task) string {
	parts := strings.Split(t.Trace["traceparent"], "-")
	if len(parts) < 4 {
		return ""
	}
	return parts[1]
}

func askedOf(q shim.Question, content bool) Asked {
	a := Asked{Key: q.Key, Method: q.Method, State: "open"}
	switch {
	case q.Withdraw:
		a.State = "withdrawn"
	case q.Answer != nil:
		a.State = "answered"
	}
	if content {
		a.Params = q.Params
		if string(q.Answer) != shim.Forgotten {
			a.Answer = q.Answer
		}
	}
	return a
}

// Cancel implements Source.
func (d *Deployment) Cancel(ctx context.Context, id, operator string) (Task, error) {
	t, err := d.o.Tasks.Cancel(ctx, shim.ID(id), operator)
	return taskOf(t), err
}

// Rerun implements Source.
func (d *Deployment) Rerun(ctx context.Context, id, operator string) (old, made Task, err error) {
	before, after, err := d.o.Tasks.Rerun(ctx, shim.ID(id), operator)
	return taskOf(before), taskOf(after), err
}

// Questions implements Source.
func (d *Deployment) Questions(ctx context.Context, content bool) (Questions, error) {
	waiting, next, err := d.o.Tasks.Search(ctx, shim.Query{States: []shim.State{shim.StateAsking}, Oldest: true, Limit: maxLimit})
	out := Questions{Questions: []Question{}, More: next != ""}
	size := 0
	for _, t := range waiting {
		for _, q := range t.Questions {
			if !q.Outstanding() {
				continue
			}
			if size += 2*maxText + len(q.Params); size > maxQuestions {
				out.More = true
				continue
			}
			one := Question{
				Task: string(t.ID), Upstream: t.Upstream, Tool: cutText(cmp.Or(t.Tool, t.Method)), Principal: cutText(t.Owner),
				Key: cutText(q.Key), Method: cutText(q.Method), Since: t.UpdatedAt,
			}
			if content {
				one.Params = q.Params
			}
			out.Questions = append(out.Questions, one)
		}
	}
	slices.SortStableFunc(out.Questions, func(a, b Question) int { return a.Since.Compare(b.Since) })
	return out, err
}

// Changes implements Source.
func (d *Deployment) Changes(ctx context.Context, changed func()) error {
	return d.o.Store.Changes(ctx, changed)
}
