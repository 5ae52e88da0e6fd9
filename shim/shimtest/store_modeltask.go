package shimtest

import (
	"encoding/json"
	"maps"
	"slices"

	"taskgate/shim"
)

// model is what a store is, in the simplest words.
type model struct {
	tasks []*modelTask
	gone  map[shim.Replica]bool
}

// modelTask is a task with all its parts.
type modelTask struct {
	shim.Task
	lastOp   string
	order    int64
	takers   map[string]string // which op took a key's answer
	contents []json.RawMessage
	seen     int64 // the version whose UpdatedAt is known
}

func newModel() *model { return &model{gone: map[shim.Replica]bool{}} }

func (m *model) find(id shim.ID) *modelTask {
	return m.tasks[slices.IndexFunc(m.tasks, func(k *modelTask) bool { return k.ID == id })]
}

func (m *model) create(t shim.Task, begin []shim.Batch) {
	t.Version = 1
	k := &modelTask{Task: t, takers: map[string]string{}}
	k.push(0, begin)
	m.tasks = append(m.tasks, k)
}

func (m *model) list(key string) (out []shim.Task) {
	for _, k := range m.tasks {
		if key != "" && k.Visible && k.ListKey == key {
			out = append(out, k.summary())
		}
	}
	return out
}

func (m *model) orphans(r shim.Replica, upstreams []string) (out []*modelTask) {
	for _, k := range m.tasks {
		if !k.Status.Final() && m.gone[k.Lease.Replica] && k.Lease.Replica != r && slices.Contains(upstreams, k.Upstream) {
			out = append(out, k)
		}
	}
	return out
}

// summary, whole and run are the parts of a task.
func (k *modelTask) summary() shim.Task {
	t := k.Task
	t.Questions = slices.Clone(t.Questions)
	t.Call, t.Checkpoint, t.Arguments, t.Outcome = nil, nil, nil, nil
	return t
}

func (k *modelTask) whole() shim.Task {
	t := k.summary()
	t.Outcome = k.Outcome
	return t
}

func (k *modelTask) run() shim.Task {
	t := k.summary()
	t.Call, t.Checkpoint, t.Arguments = k.Call, k.Checkpoint, k.Arguments
	return t
}

// fits reports whether batches at a position leave no gap.
func (k *modelTask) fits(at shim.Position) bool {
	return at <= k.Position
}

// push adds what is not yet there, and says whether that was anything.
func (k *modelTask) push(at shim.Position, batches []shim.Batch) bool {
	before := k.Position
	for _, b := range batches {
		if at == k.Position {
			k.contents = append(k.contents, b.Content)
			k.Position++
		}
		at++
	}
	return before != k.Position
}

// apply makes a change and returns the task as the caller is to see it.
func (k *modelTask) apply(l *shim.Lease, c shim.Change) (shim.Task, error) {
	switch {
	case c.Op != "" && c.Op == k.lastOp:
		return k.seenBy(c), nil
	case k.Status.Final():
		return k.seenBy(c), shim.ErrFinal
	case l != nil && *l != k.Lease:
		return shim.Task{}, shim.ErrLeaseLost
	case c.To != "" && !contains(c.To.From(), k.Status):
		return k.seenBy(c), shim.ErrFinal
	case !k.fits(c.At):
		return shim.Task{}, shim.ErrPosition
	}
	late := c.Order > 0 && c.Order < k.order
	if late {
		c.Ask = nil
	}
	if late && c.To == "" {
		c.StatusMessage, c.Progress, c.Outcome, c.Checkpoint, c.Call = nil, shim.TaskProgress{}, nil, nil, nil
	}
	if k.Position > c.At+shim.Position(len(c.Tail)) {
		c.Checkpoint = nil
	}
	changed := k.replace(c)
	if c.Op != "" {
		k.lastOp = c.Op
	}
	changed = k.edit(c, c.Order > 0 && !late) || changed
	pushed := k.push(c.At, c.Tail)
	if c.To != "" {
		k.Status, changed = c.To, true
	}
	if k.Status.Final() {
		k.finish(c.KeepArguments)
	}
	if c.Order > 0 && !late && (changed || pushed || c.Checkpoint != nil || c.Op != "") {
		k.order = c.Order
	}
	if changed {
		k.Version++
	}
	return k.seenBy(c), nil
}

// seenBy is the summary that the caller of Apply gets.
func (k *modelTask) seenBy(c shim.Change) shim.Task {
	t := k.summary()
	for i := range t.Questions {
		if q := &t.Questions[i]; len(c.Take) > 0 {
			q.Taken = q.Taken && k.takers[q.Key] == c.Op
		}
	}
	return t
}

// replace changes what a change simply sets.
func (k *modelTask) replace(c shim.Change) (changed bool) {
	if c.StatusMessage != nil {
		k.StatusMessage, changed = *c.StatusMessage, true
	}
	if c.Progress.Token != nil {
		k.Progress, changed = c.Progress, true
	}
	if c.Outcome != nil {
		k.Outcome, k.ToolError, changed = c.Outcome, c.Outcome.IsError, true
		k.OutcomeSize = int64(len(c.Outcome.Result) + len(c.Outcome.Error))
	}
	if c.Checkpoint != nil {
		k.Checkpoint = c.Checkpoint
	}
	if c.Call != nil {
		k.Call, changed = c.Call, true
	}
	if c.Visible && !k.Visible {
		k.Visible, changed = true, true
	}
	if c.TTL > k.TTL {
		k.TTL, changed = c.TTL, true
	}
	if c.Retain != 0 && c.Retain != k.Retain {
		k.Retain, changed = c.Retain, true
	}
	return changed
}

// edit changes the questions, and the status by them. has says that the runner has what other
// operations took.
func (k *modelTask) edit(c shim.Change, has bool) (changed bool) {
	before := slices.Clone(k.Questions)
	asked, closed := false, false
	for _, q := range c.Ask {
		if k.question(q.Key) == nil {
			k.Questions, asked = append(k.Questions, q), true
		}
	}
	for _, key := range c.Withdraw {
		if q := k.question(key); q != nil && q.Outstanding() {
			*q, closed = shim.Question{Key: key, Withdraw: true}, true
		}
	}
	for _, key := range slices.Sorted(maps.Keys(c.Answer)) {
		if q := k.question(key); q != nil && q.Outstanding() {
			*q, closed = shim.Question{Key: key, Answer: c.Answer[key]}, true
		}
	}
	for _, key := range c.Take {
		if q := k.question(key); q != nil && q.Answer != nil && !q.Taken {
			q.Taken, k.takers[key] = true, c.Op
		}
	}
	for i := range k.Questions {
		if q := &k.Questions[i]; has && q.Taken && k.takers[q.Key] != c.Op {
			q.Answer, k.takers[q.Key] = json.RawMessage(shim.Forgotten), ""
		}
	}
	if asked {
		k.Status = shim.InputRequired
	}
	if closed && k.Status == shim.InputRequired && !slices.ContainsFunc(k.Questions, shim.Question.Outstanding) {
		k.Status = shim.Working
	}
	return diff(before, k.Questions) != ""
}

// finish leaves what is read of a task that has ended.
func (k *modelTask) finish(keep bool) {
	k.Call, k.Checkpoint = nil, nil
	if !keep {
		k.Arguments = nil
	}
	for i := range k.Questions {
		q := &k.Questions[i]
		if q.Answer == nil {
			*q = shim.Question{Key: q.Key, Withdraw: true}
			continue
		}
		*q = shim.Question{Key: q.Key, Answer: json.RawMessage(shim.Forgotten), Taken: true}
		k.takers[q.Key] = ""
	}
}

func (k *modelTask) question(key string) *shim.Question {
	i := slices.IndexFunc(k.Questions, func(q shim.Question) bool { return q.Key == key })
	if i < 0 {
		return nil
	}
	return &k.Questions[i]
}
