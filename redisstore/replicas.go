package redisstore

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"taskgate/shim"
)

// Beat implements shim.Store. A replica beats before it creates its first task:
// only who is in the hash of heartbeats can be missed.
func (s *Store) Beat(ctx context.Context, r shim.Replica, ttl time.Duration) error {
	a := &argv{}
	a.add(string(r), millis(ttl), s.keys.goodbyes())
	return s.do(ctx, "beat", func() error {
		_, err := beatScript.run(ctx, s.client, []string{s.keys.replicas()}, a)
		return err
	})
}

// dead is a replica that is gone.
type dead struct {
	name  shim.Replica
	entry string // its heartbeat as it was found
	any   bool   // gone for so long that its upstreams do not matter
	past  bool   // gone for so long that it may be forgotten
}

// forgetAfter is how long a replica without tasks is remembered after its heartbeat
// has expired. One that could not beat for a while and then can reach Redis again
// may begin to create a task just before it was missed; while that may still be
// under way it has to be known, or nobody would ever look for the task.
const forgetAfter = 30 * time.Second

// orphan is a task that a replica tries to adopt, under an op of the attempt.
type orphan struct {
	id  shim.ID
	old shim.Replica
	op  string
}

// orphanage keeps the adoptions whose reply was lost. Such a task may be run by
// its new replica without anybody knowing it, and that replica is alive, so no
// other would ever adopt it: the next Adopt asks again.
type orphanage struct {
	mu       sync.Mutex
	doubtful map[shim.Replica][]orphan
	// childless are replicas that are gone and had no tasks, with the heartbeat they
	// were found by: they need not be looked through again before they are forgotten.
	childless map[shim.Replica]string
}

// searched notes that a replica had no tasks.
func (o *orphanage) searched(d dead) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.childless == nil {
		o.childless = map[shim.Replica]string{}
	}
	o.childless[d.name] = d.entry
}

// worth leaves out the replicas that had no tasks when they were last looked
// through, and forgets that of those that are not gone any more.
func (o *orphanage) worth(gone []dead) []dead {
	o.mu.Lock()
	defer o.mu.Unlock()
	before := o.childless
	o.childless = map[shim.Replica]string{}
	return slices.DeleteFunc(gone, func(d dead) bool {
		if entry, ok := before[d.name]; !ok || entry != d.entry {
			return false
		}
		o.childless[d.name] = d.entry
		return !d.past
	})
}

// take removes and returns what is in doubt for a replica.
func (o *orphanage) take(r shim.Replica) []orphan {
	o.mu.Lock()
	defer o.mu.Unlock()
	list := o.doubtful[r]
	delete(o.doubtful, r)
	return list
}

// put adds to it.
func (o *orphanage) put(r shim.Replica, list ...orphan) {
	if len(list) == 0 {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.doubtful == nil {
		o.doubtful = map[shim.Replica][]orphan{}
	}
	o.doubtful[r] = append(o.doubtful[r], list...)
}

// Adopt implements shim.Store. What was adopted before an error is returned
// without the error: the tasks are the caller's now.
func (s *Store) Adopt(ctx context.Context, r shim.Replica, upstreams []string, n int) ([]shim.Task, error) {
	a := &adoption{s: s, replica: r, upstreams: upstreams, n: n}
	err := a.settle(ctx, s.orphans.take(r))
	if err == nil {
		err = a.search(ctx)
	}
	if len(a.tasks) > 0 {
		return a.tasks, nil
	}
	return nil, err
}

// adoption is one run of Adopt.
type adoption struct {
	s         *Store
	replica   shim.Replica
	upstreams []string
	n         int
	tasks     []shim.Task
}

// search goes through the replicas that are gone.
func (a *adoption) search(ctx context.Context) error {
	gone, err := a.s.gone(ctx)
	for _, d := range a.s.orphans.worth(gone) {
		if err != nil || len(a.tasks) >= a.n {
			break
		}
		if d.name != a.replica {
			err = a.from(ctx, d)
		}
	}
	return err
}

// gone lists the replicas that are.
func (s *Store) gone(ctx context.Context) ([]dead, error) {
	var list []dead
	a := &argv{}
	a.addInt(ms(forgetAfter))
	err := s.do(ctx, "adopt", func() error {
		v, err := goneScript.run(ctx, s.client, []string{s.keys.replicas()}, a)
		if err != nil {
			return err
		}
		list = nil
		for e := range slices.Chunk(v[1:], 4) {
			list = append(list, dead{shim.Replica(e[0]), e[1], e[2] == "1", e[3] == "1"})
		}
		return nil
	})
	return list, err
}

// from adopts tasks of one replica, shard by shard in chunks that begin anywhere,
// so that several adopters do not all want the same ones. A replica without tasks
// is forgotten in time.
func (a *adoption) from(ctx context.Context, d dead) error {
	const chunk = 64
	empty, start := true, rand.N(len(shards))
	for i := 0; i < len(shards) && len(a.tasks) < a.n; i += chunk {
		tags := make([]string, chunk)
		for j := range tags {
			tags[j] = shards[(start+i+j)%len(shards)]
		}
		ids, err := a.s.running(ctx, tags, d.name)
		if err != nil {
			return err
		}
		empty = empty && len(ids) == 0
		if err := a.some(ctx, d, ids); err != nil {
			return err
		}
	}
	if !empty || len(a.tasks) >= a.n {
		return nil
	}
	if !d.past {
		a.s.orphans.searched(d)
		return nil
	}
	return a.s.do(ctx, "adopt", func() error {
		v := &argv{}
		v.add(string(d.name), d.entry)
		_, err := forgetScript.run(ctx, a.s.client, []string{a.s.keys.replicas()}, v)
		return err
	})
}

// running lists the tasks of a replica in some shards.
func (s *Store) running(ctx context.Context, tags []string, r shim.Replica) ([]shim.ID, error) {
	var ids []shim.ID
	err := s.do(ctx, "adopt", func() error {
		p := s.client.Pipeline()
		cmds := make([]*redis.StringSliceCmd, len(tags))
		for i, tag := range tags {
			cmds[i] = p.SMembers(ctx, s.keys.run(tag, r))
		}
		if _, err := p.Exec(ctx); err != nil {
			return err
		}
		ids = nil
		for _, c := range cmds {
			for _, id := range c.Val() {
				ids = append(ids, shim.ID(id))
			}
		}
		return nil
	})
	return ids, err
}

// some adopts those of a replica's tasks that are on the right upstreams.
func (a *adoption) some(ctx context.Context, d dead, ids []shim.ID) error {
	for batch := range slices.Chunk(ids, 256) {
		fit, err := a.fit(ctx, d, batch)
		if err != nil {
			return err
		}
		for _, id := range fit {
			if len(a.tasks) >= a.n {
				return nil
			}
			o := orphan{id, d.name, uuid.NewString()}
			if err := a.one(ctx, o, &d); err != nil {
				a.s.orphans.put(a.replica, o)
				return err
			}
		}
	}
	return nil
}

// fit leaves out tasks on upstreams that this replica does not know, with one
// round trip for many. Tasks that are gone stay in: the script tidies them away.
func (a *adoption) fit(ctx context.Context, d dead, ids []shim.ID) ([]shim.ID, error) {
	if d.any {
		return ids, nil
	}
	var out []shim.ID
	err := a.s.do(ctx, "adopt", func() error {
		p := a.s.client.Pipeline()
		cmds := make([]*redis.StringSliceCmd, len(ids))
		for i, id := range ids {
			cmds[i] = redis.NewStringSliceCmd(ctx, "hmget", a.s.keys.task(id), fieldStatus, fieldUpstream)
			_ = p.Process(ctx, cmds[i])
		}
		if _, err := p.Exec(ctx); err != nil {
			return err
		}
		out = nil
		for i, c := range cmds {
			if v := c.Val(); v[0] == "" || slices.Contains(a.upstreams, v[1]) {
				out = append(out, ids[i])
			}
		}
		return nil
	})
	return out, err
}

// settle asks what became of the attempts that are in doubt. With no upstream to
// match, those that came to nothing then are not made now: the old runner may be
// back.
func (a *adoption) settle(ctx context.Context, doubtful []orphan) error {
	for i, o := range doubtful {
		if err := a.one(ctx, o, nil); err != nil {
			a.s.orphans.put(a.replica, doubtful[i:]...)
			return err
		}
	}
	return nil
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
	return a.s.do(ctx, "adopt", func() error {
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
