package redisstore

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"taskgate/shim"

	"github.com/redis/go-redis/v9"
)

// open has the statuses of a task that has not ended, as scripts want them.
var open = spellStatuses(shim.Open())

// spellStatuses spells statuses so that a script finds one by its surrounding spaces.
func spellStatuses(statuses []shim.Status) string {
	line := " "
	for _, s := range statuses {
		line += string(s) + " "
	}
	return line
}

// Create implements shim.Store.
func (s *Store) Create(ctx context.Context, t shim.Task, begin ...shim.Batch) (shim.Task, error) {
	if _, err := shim.ParseID(string(t.ID)); err != nil || t.Op == "" {
		return shim.Task{}, fmt.Errorf("create: task %q without an id or an op", t.ID)
	}
	t.Status = cmp.Or(t.Status, shim.Working)
	args := createArgs(s.keys.events(t.ID), ms(s.opts.slack), t, begin)
	var task shim.Task
	err := s.doRepeated(ctx, "create", func(ctx context.Context) error {
		// The list comes first: a task that no list shows is worse than an entry without a task.
		if err := s.listTask(ctx, t.ListKey, t); err != nil {
			return err
		}
		v, err := s.runScript(ctx, createScript, append(s.keys.record(t.ID, t.Lease.Replica), s.keys.all(string(t.ID[:len(s.begins[0])]))), args, true)
		if err != nil {
			return err
		}
		if v[0] == codeTaken {
			return shim.ErrFinal
		}
		task, err = decode(t.ID, shim.Summary, v[1:])
		return err
	})
	return task, err
}

// createArgs makes the arguments of create.lua.
func createArgs(events string, slack int64, t shim.Task, begin []shim.Batch) *argv {
	a := &argv{}
	a.add(string(t.ID), t.Op, events, string(t.Lease.Replica))
	a.addInt(slack)
	a.add(optional(t.Visible, "1"), optional(t.Status.Final(), "1"))
	a.addInt(ms(t.TTL), ms(t.Retain))
	a.addFields(encode(t))
	addMoments(a, t.Timeline)
	addBatches(a, begin)
	return a
}

// addBatches adds the contents of batches as a list.
func addBatches(a *argv, batches []shim.Batch) {
	var contents []json.RawMessage
	for _, b := range batches {
		contents = append(contents, b.Content)
	}
	addList(a, contents)
}

// Apply implements shim.Store.
func (s *Store) Apply(ctx context.Context, id shim.ID, lease *shim.Lease, c shim.Change) (shim.Task, error) {
	if _, err := shim.ParseID(string(id)); err != nil {
		return shim.Task{}, err
	}
	if c.Op == "" && (c.To != "" || c.StatusMessage != nil || c.Visible || c.KeptUntil != nil || len(c.Take) > 0) {
		return shim.Task{}, errors.New("apply: this change needs an op")
	}
	var task shim.Task
	err := s.doRepeated(ctx, "apply", func(ctx context.Context) error {
		v, err := s.applyOnce(ctx, id, lease, c)
		if err != nil {
			return err
		}
		task, err = s.readApplied(ctx, id, c, v)
		return err
	})
	return task, err
}

// applyOnce runs apply.lua. A script may touch only keys that the caller names, and one of them has
// the runner in it. A caller without a lease reads the runner first; if the runner has changed by
// then, the script returns the new one, and applyOnce tries again.
func (s *Store) applyOnce(ctx context.Context, id shim.ID, lease *shim.Lease, c shim.Change) ([]string, error) {
	if lease != nil {
		args := applyArgs(s.keys.events(id), "", ms(s.opts.slack), id, *lease, lease.String(), c)
		keys := s.keys.record(id, lease.Replica)
		if mustLast(c) {
			return s.runScript(ctx, applyScript, keys, args, true)
		}
		return applyScript.runOn(ctx, s.writes, keys, args)
	}
	held, err := s.client.HGet(ctx, s.keys.task(id), fieldLease).Result()
	if errors.Is(err, redis.Nil) {
		return []string{codeNone}, nil
	}
	if err != nil {
		return nil, err
	}
	runner, err := shim.ParseLease(held)
	for err == nil {
		inbox := ""
		if runner.Replica != "" {
			inbox = s.keys.inbox(shard(id), runner.Replica)
		}
		var v []string
		args := applyArgs(s.keys.events(id), inbox, ms(s.opts.slack), id, runner, "", c)
		v, err = s.runScript(ctx, applyScript, s.keys.record(id, runner.Replica), args, mustLast(c))
		if err != nil || v[0] != codeMoved {
			return v, err
		}
		runner.Replica = shim.Replica(v[1])
	}
	return nil, err
}

// isEnd reports whether a change ends its task.
func isEnd(c shim.Change) bool { return c.To != "" && c.To.Final() }

// mustLast reports whether a change must survive the loss of a master.
func mustLast(c shim.Change) bool { return c.Durable || isEnd(c) }

// readApplied reads the reply of apply.lua.
func (s *Store) readApplied(ctx context.Context, id shim.ID, c shim.Change, v []string) (shim.Task, error) {
	switch v[0] {
	case codeNone, codeLost, codeGap:
		return shim.Task{}, refusalErrors[v[0]]
	}
	task, err := decode(id, shim.Summary, v[1:])
	if err != nil {
		return shim.Task{}, err
	}
	if len(c.Take) > 0 {
		task.Questions = (&row{values: v[len(summaryFields):]}).questions(c.Op)
	}
	if v[0] == codeFinal {
		return task, shim.ErrFinal
	}
	if c.Outcome != nil && c.Outcome.Unknown {
		if err := s.listTask(ctx, unknownList, task); err != nil {
			return task, err
		}
	}
	if v[0] == codeRenew || v[0] == codeAgain {
		return task, s.listTask(ctx, task.ListKey, task)
	}
	return task, nil
}

// applyArgs makes the arguments of apply.lua.
func applyArgs(events, inbox string, slack int64, id shim.ID, runner shim.Lease, lease string, c shim.Change) *argv {
	a := &argv{list: make([]any, 0, 32)}
	a.add(string(id), string(runner.Replica), lease, c.Op, events, inbox)
	a.addInt(slack)
	a.add(open, string(c.To), spellStatuses(c.To.From()), optional(isEnd(c), "1"), string(shim.InputRequired), string(shim.Working))
	a.add(optional(c.Visible, "1"), optional(c.TTL > 0, millis(c.TTL)), optional(c.Retain > 0, millis(c.Retain)))
	a.addInt(int64(c.At))
	a.add(optional(c.Order > 0, strconv.FormatInt(c.Order, 10)), optional(c.Token != "", " "+withToken+c.Token))
	a.add(optional(c.KeepArguments, "1"))
	a.addFields(changedFields(c))
	ask := make([]string, 0, 3*len(c.Ask))
	for _, q := range c.Ask {
		ask = append(ask, q.Key, q.Method, string(q.Params))
	}
	addList(a, ask)
	addList(a, c.Withdraw)
	answers := make([]string, 0, 2*len(c.Answer))
	for key, answer := range c.Answer {
		answers = append(answers, key, string(answer))
	}
	addList(a, answers)
	addList(a, c.Take)
	addMoments(a, c.Moments)
	addBatches(a, c.Tail)
	return a
}

// changedFields lists the fields that a change replaces regardless of their old value.
func changedFields(c shim.Change) fields {
	var f fields
	if c.StatusMessage != nil {
		f.list = append(f.list, fieldMessage, *c.StatusMessage)
	}
	if c.Progress.Token != nil {
		f.list = append(f.list, fieldProgress, encodeProgress(c.Progress))
	}
	if c.Checkpoint != nil {
		f.list = append(f.list, fieldCheckpoint, []byte(c.Checkpoint))
	}
	if c.Call != nil {
		f.list = append(f.list, fieldCall, []byte(c.Call))
	}
	if c.KeptUntil != nil {
		f.list = append(f.list, fieldKept, spellTime(*c.KeptUntil))
	}
	f.setOutcome(c.Outcome)
	return f
}

// NoteRerun implements shim.Store.
func (s *Store) NoteRerun(ctx context.Context, id, as shim.ID) (first shim.ID, err error) {
	if _, err := shim.ParseID(string(id)); err != nil {
		return "", err
	}
	err = s.doRepeated(ctx, "rerun", func(ctx context.Context) error {
		a := &argv{}
		a.add(string(as))
		v, err := s.runScript(ctx, rerunScript, []string{s.keys.task(id)}, a, true)
		if err != nil {
			return err
		}
		if v[0] == codeNone {
			return shim.ErrNotFound
		}
		first = shim.ID(v[1])
		return nil
	})
	return first, err
}

// optional returns value, or "" if have is false.
func optional(have bool, value string) string {
	if have {
		return value
	}
	return ""
}

// refusalErrors has the refusals of apply.lua.
var refusalErrors = map[string]error{
	codeNone: shim.ErrNotFound, codeFinal: shim.ErrFinal, codeLost: shim.ErrLeaseLost, codeGap: shim.ErrPosition,
}

// runScript runs a script. A durable write has reached WaitReplicas replicas when runScript
// returns, or the error is ErrNotReplicated. WAIT counts the writes of its own connection, so both
// go over one connection, to the master of the slot.
func (s *Store) runScript(ctx context.Context, sc *script, keys []string, args *argv, durable bool) ([]string, error) {
	if !durable || s.opts.WaitReplicas == 0 {
		return sc.runOn(ctx, s.client, keys, args)
	}
	conn, err := s.takeConn(ctx, keys[0])
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	v, err := sc.runOn(ctx, conn, keys, args)
	if err == nil && (v[0] == codeAgain || v[0] == codeFinal) {
		// The change was written before, maybe by another replica. From Redis 7.2 on, WAIT waits
		// only for the writes of its own connection, so this one writes something.
		_, err = touchScript.runOn(ctx, conn, keys[:1], &argv{})
	}
	if err != nil {
		return nil, err
	}
	// Redis wakes it, after WaitTimeout at the latest; then the write is repeated.
	n, err := conn.Wait(ctx, s.opts.WaitReplicas, s.opts.WaitTimeout).Result()
	if err == nil && n < int64(s.opts.WaitReplicas) {
		err = ErrNotReplicated
	}
	return v, err
}

// takeConn takes a connection to the master of a key out of the pool.
func (s *Store) takeConn(ctx context.Context, key string) (*redis.Conn, error) {
	master, one := s.client.(*redis.Client)
	if !one {
		var err error
		if master, err = s.client.(*redis.ClusterClient).MasterForKey(ctx, key); err != nil {
			return nil, err
		}
	}
	return master.Conn(), nil
}
