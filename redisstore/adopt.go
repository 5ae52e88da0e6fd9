package redisstore

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"taskgate/shim"
)

// Adopt implements shim.Store. A shard that does not answer, as those of a cluster's
// master that was lost, is left out: what was adopted from the others is returned
// without the error, since the tasks are the caller's now, and an Adopt that finds
// nothing says that it could not look everywhere.
func (s *Store) Adopt(ctx context.Context, r shim.Replica, upstreams []string, n int) ([]shim.Task, error) {
	a := &adoption{s: s, replica: r, upstreams: upstreams, n: n, lost: map[string]bool{}}
	a.settle(ctx, s.orphans.take(r))
	a.search(ctx)
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

	lost map[string]bool // shards that are not asked any more
	err  error           // why, of the first
	// over says that a shard was lost while tasks of it were adopted. How many more it
	// takes with it would show by one failure each; the next run knows before it begins.
	over bool
}

// done reports whether to look no further.
func (a *adoption) done(ctx context.Context) bool {
	return a.over || len(a.tasks) >= a.n || ctx.Err() != nil
}

// do is Store.do until something has failed. Then Redis has had its time, and the
// next heartbeat shall not be late: what else fails is not tried again in this run.
func (a *adoption) do(ctx context.Context, f func() error) error {
	var err error
	if a.err == nil {
		err = a.s.do(ctx, "adopt", f)
	} else if err = f(); err != nil {
		err = wrap("adopt", err)
	}
	return err
}

// lose leaves a shard out from now on.
func (a *adoption) lose(tag string, err error) {
	a.lost[tag] = true
	a.fail(err)
}

// fail notes an error, if it is the first.
func (a *adoption) fail(err error) {
	if a.err == nil {
		a.err = err
	}
}

// search goes through the replicas that are gone.
func (a *adoption) search(ctx context.Context) {
	var gone []dead
	err := a.do(ctx, func() (err error) {
		gone, err = a.s.gone(ctx)
		return err
	})
	if err != nil {
		a.fail(err)
		return
	}
	for _, d := range a.s.orphans.worth(gone) {
		if a.done(ctx) {
			return
		}
		if d.name != a.replica {
			a.from(ctx, d)
		}
	}
}

// from adopts tasks of one replica, some shards at a time, beginning anywhere, so that
// several adopters do not all want the same ones. A replica without tasks is forgotten
// in time, once every shard has said that it has none.
func (a *adoption) from(ctx context.Context, d dead) {
	const chunk = 64
	tags := a.busy(ctx, d.name)
	if len(tags) == 0 && len(a.lost) == 0 && ctx.Err() == nil {
		a.childless(ctx, d)
		return
	}
	start := 0
	if len(tags) > 0 {
		start = rand.N(len(tags))
	}
	for some := range slices.Chunk(slices.Concat(tags[start:], tags[:start]), chunk) {
		if a.done(ctx) {
			return
		}
		a.some(ctx, d, a.running(ctx, some, d.name))
	}
}

// childless notes that a replica has no tasks, or forgets it.
func (a *adoption) childless(ctx context.Context, d dead) {
	if !d.past {
		a.s.orphans.searched(d)
		return
	}
	err := a.do(ctx, func() error {
		v := &argv{}
		v.add(string(d.name), d.entry)
		_, err := forgetScript.run(ctx, a.s.client, []string{a.s.keys.replicas()}, v)
		return err
	})
	if err != nil {
		a.fail(err)
	}
}

// ask runs a command in each of several shards at once. Those that do not answer are
// lost; use gets the index of each of the others.
func ask[C redis.Cmder](ctx context.Context, a *adoption, tags []string, command func(i int) C, use func(i int, c C)) {
	var pending []int
	for i, tag := range tags {
		if !a.lost[tag] {
			pending = append(pending, i)
		}
	}
	if len(pending) == 0 {
		return
	}
	err := a.do(ctx, func() error {
		p := a.s.client.Pipeline()
		commands := make([]C, len(tags))
		for _, i := range pending {
			commands[i] = command(i)
			_ = p.Process(ctx, commands[i])
		}
		if _, err := p.Exec(ctx); err != nil && ctx.Err() != nil {
			return err
		}
		var first error
		pending = slices.DeleteFunc(pending, func(i int) bool {
			err := commands[i].Err()
			if err == nil {
				use(i, commands[i])
			} else if first == nil {
				first = err
			}
			return err == nil
		})
		return first
	})
	for _, i := range pending {
		a.lose(tags[i], err)
	}
}

// busy are the shards in which a replica runs tasks, of those that answer.
func (a *adoption) busy(ctx context.Context, r shim.Replica) []string {
	var tags []string
	ask(ctx, a, shards[:], func(i int) *redis.IntCmd {
		return redis.NewIntCmd(ctx, "scard", a.s.keys.run(shards[i], r))
	}, func(i int, c *redis.IntCmd) {
		if c.Val() > 0 {
			tags = append(tags, shards[i])
		}
	})
	return tags
}

// running lists the tasks of a replica in some shards.
func (a *adoption) running(ctx context.Context, tags []string, r shim.Replica) []shim.ID {
	var ids []shim.ID
	ask(ctx, a, tags, func(i int) *redis.StringSliceCmd {
		return redis.NewStringSliceCmd(ctx, "smembers", a.s.keys.run(tags[i], r))
	}, func(_ int, c *redis.StringSliceCmd) {
		for _, id := range c.Val() {
			ids = append(ids, shim.ID(id))
		}
	})
	return ids
}

// some adopts those of a replica's tasks that are on the right upstreams. An attempt
// that failed is in doubt. A shard that refuses it, because it is full, says nothing
// of the others.
func (a *adoption) some(ctx context.Context, d dead, ids []shim.ID) {
	for batch := range slices.Chunk(ids, 256) {
		for _, id := range a.fit(ctx, d, batch) {
			if a.done(ctx) {
				return
			}
			if a.lost[shard(id)] {
				continue
			}
			o := orphan{id, d.name, uuid.NewString()}
			if err := a.one(ctx, o, &d); err != nil {
				a.s.orphans.put(a.replica, o)
				a.lose(shard(id), err)
				a.over = !hasPrefix(err, lasting...)
			}
		}
	}
}

// fit leaves out tasks on upstreams that this replica does not know, with one
// round trip for many. Tasks that are gone stay in: the script tidies them away.
func (a *adoption) fit(ctx context.Context, d dead, ids []shim.ID) []shim.ID {
	if d.any {
		return ids
	}
	tags := make([]string, len(ids))
	for i, id := range ids {
		tags[i] = shard(id)
	}
	var out []shim.ID
	ask(ctx, a, tags, func(i int) *redis.StringSliceCmd {
		return redis.NewStringSliceCmd(ctx, "hmget", a.s.keys.task(ids[i]), fieldStatus, fieldUpstream)
	}, func(i int, c *redis.StringSliceCmd) {
		if v := c.Val(); v[0] == "" || slices.Contains(a.upstreams, v[1]) {
			out = append(out, ids[i])
		}
	})
	return out
}

// settle asks what became of the attempts that are in doubt. With no upstream to
// match, those that came to nothing then are not made now: the old runner may be
// back. One that fails stays in doubt, behind the others, and is the last of this
// run: those behind it go first in the next.
func (a *adoption) settle(ctx context.Context, doubtful []orphan) {
	for i, o := range doubtful {
		if err := a.one(ctx, o, nil); err != nil {
			a.s.orphans.put(a.replica, doubtful[i+1:]...)
			a.s.orphans.put(a.replica, o)
			a.lose(shard(o.id), err)
			return
		}
	}
}

// one adopts a task of a replica that is gone, or learns that it is not to be had;
// without such a replica it only learns whether the attempt was made before.
func (a *adoption) one(ctx context.Context, o orphan, from *dead) error {
	k, tag := a.s.keys, shard(o.id)
	v := &argv{}
	v.add(string(o.id), string(o.old), string(a.replica), o.op, k.events(o.id), k.inbox(tag, o.old), open)
	v.flag(from != nil && from.any)
	if from != nil {
		addList(v, a.upstreams)
	} else {
		addList(v, []string{})
	}
	addList(v, partFields[shim.WithRun])
	return a.do(ctx, func() error {
		keys := []string{k.task(o.id), k.run(tag, o.old), k.run(tag, a.replica)}
		got, err := adoptScript.run(ctx, a.s.client, keys, v)
		if err != nil || got[0] != codeOK {
			return err
		}
		task, err := decode(o.id, shim.WithRun, got[1:])
		if err == nil {
			a.tasks = append(a.tasks, task)
		}
		return err
	})
}
