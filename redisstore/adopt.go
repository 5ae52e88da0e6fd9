package redisstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"taskgate/shim"
)

// Adopt implements shim.Store. It leaves out a shard that fails to answer, as those of a lost master of a
// cluster. If it has adopted tasks from other shards, it returns them and a nil error, because the caller
// owns them now; otherwise the error says how many shards were out of reach.
func (s *Store) Adopt(ctx context.Context, r shim.Replica, upstreams []string, n int) ([]shim.Task, error) {
	a := &adoption{s: s, replica: r, upstreams: upstreams, n: n, lost: map[string]bool{}}
	a.settleDoubtful(ctx, s.orphans.takeDoubtful(r))
	a.searchReplicas(ctx)
	switch {
	case len(a.tasks) > 0:
		return a.tasks, nil
	case len(a.lost) > 0:
		return nil, fmt.Errorf("tasks in %d of %d shards are out of reach: %w", len(a.lost), len(shards), a.err)
	}
	return nil, a.err
}

// adoption is one run of Adopt.
type adoption struct {
	s         *Store
	replica   shim.Replica
	upstreams []string
	n         int
	tasks     []shim.Task

	back int64           // the newest heartbeat from before Redis went back; 0 for none
	lost map[string]bool // shards that are left out from now on
	err  error           // the first reason
	// over says that a shard was lost while tasks of it were adopted. More shards may be lost with it, and
	// each would cost a failure to find; the next run knows them before it begins.
	over bool
}

// isOver reports whether the run should stop here.
func (a *adoption) isOver(ctx context.Context) bool {
	return a.over || len(a.tasks) >= a.n || ctx.Err() != nil
}

// doUnlessFailed is Store.doRepeated until something has failed, which it notes. From then on it makes one
// attempt only: Redis has had its time, and the next heartbeat must be on time.
func (a *adoption) doUnlessFailed(ctx context.Context, f func() error) error {
	if a.err == nil {
		a.err = a.s.doRepeated(ctx, opAdopt, func(context.Context) error { return f() })
		return a.err
	}
	if err := f(); err != nil {
		return wrapError(opAdopt, err)
	}
	return nil
}

// searchReplicas goes through the replicas that are gone.
func (a *adoption) searchReplicas(ctx context.Context) {
	gone := a.listGone(ctx)
	if len(gone) > 0 && a.doUnlessFailed(ctx, func() error { return a.readBack(ctx) }) != nil {
		return
	}
	for _, d := range gone {
		if a.isOver(ctx) {
			return
		}
		if d.name != a.replica {
			a.adoptFrom(ctx, d)
		}
	}
}

// readBack reads whether Redis has gone back, as any replica has found.
func (a *adoption) readBack(ctx context.Context) error {
	back, err := a.s.client.Get(ctx, a.s.keys.back()).Int64()
	if errors.Is(err, redis.Nil) {
		err = nil
	}
	a.back = max(back, a.s.jumps.wentBack())
	return err
}

// listGone lists the replicas that are gone; none if Redis does not say.
func (a *adoption) listGone(ctx context.Context) (gone []dead) {
	_ = a.doUnlessFailed(ctx, func() (err error) { // the error is noted
		gone, err = a.s.listGone(ctx, a.replica)
		return err
	})
	return gone
}

// adoptFrom adopts tasks of one replica, some shards at a time, in random order, so that several adopters want
// different tasks. A replica is forgotten in time, once every shard has said that it has no tasks.
func (a *adoption) adoptFrom(ctx context.Context, d dead) {
	const chunk = 64
	tags := a.busyShards(ctx, d.name)
	if d.past && len(tags) == 0 && len(a.lost) == 0 && ctx.Err() == nil {
		a.forgetReplica(ctx, d)
	}
	rand.Shuffle(len(tags), func(i, j int) { tags[i], tags[j] = tags[j], tags[i] })
	for some := range slices.Chunk(tags, chunk) {
		if a.isOver(ctx) || !a.adoptSome(ctx, d, a.runningTasks(ctx, some, d.name)) {
			return
		}
	}
}

// forgetReplica forgets a replica without tasks.
func (a *adoption) forgetReplica(ctx context.Context, d dead) {
	_ = a.doUnlessFailed(ctx, func() error { // the error is noted
		v := &argv{}
		v.add(string(d.name), d.entry)
		_, err := forgetScript.runOn(ctx, a.s.client, []string{a.s.keys.replicas()}, v)
		return err
	})
}

// askShards runs a command in each of several shards at once. command makes the command of an index; if text
// is true, it sends the script by its text, because Redis lacks it. use takes each answer, a WRONGTYPE error
// included. Shards that fail to answer are lost, and failed, which may be nil, gets the index of each.
func askShards[C redis.Cmder](ctx context.Context, a *adoption, tags []string, command func(i int, text bool) C, use func(i int, c C) error, failed func(i int, err error)) {
	var pending []int
	for i, tag := range tags {
		if !a.lost[tag] {
			pending = append(pending, i)
		}
	}
	if len(pending) == 0 {
		return
	}
	errs := make(map[int]error, len(pending))
	attempt := func(text bool) {
		p := a.s.client.Pipeline()
		commands := make([]C, len(tags))
		for _, i := range pending {
			commands[i] = command(i, text)
			_ = p.Process(ctx, commands[i])
		}
		_, whole := p.Exec(ctx)
		// If Redis refuses the connection, the client sets the error of the pipeline only; otherwise that
		// error is one of a command's.
		if slices.ContainsFunc(pending, func(i int) bool { return commands[i].Err() != nil }) {
			whole = nil
		}
		clear(errs)
		pending = slices.DeleteFunc(pending, func(i int) bool {
			err := cmp.Or(commands[i].Err(), whole)
			if err == nil || hasPrefix(err, wrongType) {
				err = use(i, commands[i])
			}
			if err != nil {
				errs[i] = err
			}
			return err == nil
		})
	}
	_ = a.doUnlessFailed(ctx, func() error { // those that failed are pending
		attempt(false)
		if slices.ContainsFunc(pending, func(i int) bool { return isUnknownScript(errs[i]) }) {
			attempt(true)
		}
		if len(pending) > 0 {
			return errs[pending[0]]
		}
		return nil
	})
	for _, i := range pending {
		if failed != nil {
			failed(i, errs[i])
		}
		a.lost[tags[i]] = true
	}
}

// busyShards returns the shards, of those that answer, in which a replica runs tasks.
func (a *adoption) busyShards(ctx context.Context, r shim.Replica) []string {
	var tags []string
	askShards(ctx, a, shards[:], func(i int, _ bool) *redis.IntCmd {
		return redis.NewIntCmd(ctx, "zcard", a.s.keys.run(shards[i], r))
	}, func(i int, c *redis.IntCmd) error {
		if c.Val() > 0 {
			tags = append(tags, shards[i])
		}
		return c.Err()
	}, nil)
	return tags
}

// found is a task of a replica that is gone.
type found struct {
	id shim.ID
	// until is when it is too late to adopt it, in ms of its shard's clock.
	until int64
}

// adoptWithin is how long after it was found a task may be adopted. A command that was held up for longer may
// run when its caller has stopped waiting and the old runner is back.
const adoptWithin = 5 * time.Second

// runningTasks lists the tasks of a replica in some shards.
func (a *adoption) runningTasks(ctx context.Context, tags []string, r shim.Replica) []found {
	var tasks []found
	askShards(ctx, a, tags, func(i int, text bool) *redis.StringSliceCmd {
		return runningScript.toCommand(ctx, []string{a.s.keys.run(tags[i], r)}, &argv{}, text)
	}, func(_ int, c *redis.StringSliceCmd) error {
		if c.Err() != nil {
			return c.Err()
		}
		now, err := strconv.ParseInt(c.Val()[1], 10, 64)
		for _, id := range c.Val()[2:] {
			tasks = append(tasks, found{shim.ID(id), now + adoptWithin.Milliseconds()})
		}
		return err
	}, nil)
	return tasks
}

// adoptSome adopts those of a replica's tasks that are on the right upstreams, and reports whether the
// replica is still gone. It checks that before each batch, because reading takes time.
func (a *adoption) adoptSome(ctx context.Context, d dead, tasks []found) bool {
	for len(tasks) > 0 && !a.isOver(ctx) {
		if !a.stillGone(ctx, d) {
			return false
		}
		n := min(len(tasks), a.n-len(a.tasks))
		a.adoptBatch(ctx, d, tasks[:n])
		tasks = tasks[n:]
	}
	return true
}

// stillGone reports whether a replica is still gone and has not beaten since it was found.
func (a *adoption) stillGone(ctx context.Context, d dead) bool {
	return slices.ContainsFunc(a.listGone(ctx), func(g dead) bool { return g.name == d.name && g.entry == d.entry })
}

// adoptBatch adopts tasks of a replica that is gone with one round trip. An attempt that failed is in doubt.
// A shard that refuses it because it is full leaves the others open.
func (a *adoption) adoptBatch(ctx context.Context, d dead, tasks []found) {
	tags, orphans := make([]string, len(tasks)), make([]orphan, len(tasks))
	for i, t := range tasks {
		tags[i], orphans[i] = shard(t.id), orphan{t.id, d.name, uuid.NewString(), parseBeat(d.entry).written <= a.back}
	}
	askShards(ctx, a, tags, func(i int, text bool) *redis.StringSliceCmd {
		keys, args := a.adoptArgs(orphans[i], &d, tasks[i].until)
		return adoptScript.toCommand(ctx, keys, args, text)
	}, func(i int, c *redis.StringSliceCmd) error {
		return a.takeReply(ctx, orphans[i], c.Val(), c.Err())
	}, func(i int, err error) {
		a.s.orphans.putDoubtful(a.replica, orphans[i])
		a.over = a.over || !hasPrefix(err, lasting...)
	})
}

// settleDoubtful finds out whether the attempts that are in doubt succeeded. It passes no upstreams, so that
// a failed attempt is left as it is: the old runner may be back. If one fails again, it stays in doubt,
// behind the others, and ends this run; the next run begins with those behind it.
func (a *adoption) settleDoubtful(ctx context.Context, doubtful []orphan) {
	for i, o := range doubtful {
		keys, args := a.adoptArgs(o, nil, 0)
		if a.doUnlessFailed(ctx, func() error {
			got, err := adoptScript.runOn(ctx, a.s.client, keys, args)
			return a.takeReply(ctx, o, got, err)
		}) != nil {
			a.s.orphans.putDoubtful(a.replica, doubtful[i+1:]...)
			a.s.orphans.putDoubtful(a.replica, o)
			a.lost[shard(o.id)] = true
			return
		}
	}
}

// adoptArgs makes the keys and arguments of adopt.lua. If from is nil, the script adopts nothing, and only
// tells whether this attempt was made before.
func (a *adoption) adoptArgs(o orphan, from *dead, until int64) ([]string, *argv) {
	k, tag := a.s.keys, shard(o.id)
	v := &argv{}
	v.add(string(o.id), string(o.old), string(a.replica), o.op, k.events(o.id), k.inbox(tag, o.old), open, optional(from != nil && from.any, "1"))
	v.addInt(until)
	if from != nil {
		addList(v, a.upstreams)
	} else {
		addList(v, []string{})
	}
	addList(v, partFields[shim.WithRun])
	addMoments(v, []shim.Moment{{Kind: shim.KindAdopted, Detail: string(a.replica) + " from " + string(o.old)}})
	return []string{k.task(o.id), k.run(tag, o.old), k.run(tag, a.replica)}, v
}

// takeReply reads the reply of adopt.lua. It skips a record that cannot be read, so that the others go on.
func (a *adoption) takeReply(ctx context.Context, o orphan, got []string, err error) error {
	err = recordError(o.id, err)
	switch {
	case err != nil:
	case got[0] == codeUnread:
		err = &unreadableError{o.id, errors.New(got[1])}
	case got[0] != codeOK:
		return nil
	}
	var task shim.Task
	if err == nil {
		task, err = decode(o.id, shim.WithRun, got[1:])
	}
	switch {
	case a.s.skipUnreadable(ctx, err):
		return nil
	case err != nil:
		return err
	}
	task.From, task.Doubted = o.old, o.doubted
	a.tasks = append(a.tasks, task)
	return nil
}
