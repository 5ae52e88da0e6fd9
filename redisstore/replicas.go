package redisstore

import (
	"context"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"taskgate/shim"
)

// Beat implements shim.Store. A replica beats before it creates its first task, because only a replica in the
// hash of heartbeats can be missed.
func (s *Store) Beat(ctx context.Context, r shim.Replica, ttl time.Duration) error {
	a := &argv{}
	a.add(string(r), millis(ttl), s.keys.goodbyes())
	return s.doRepeated(ctx, "beat", func(ctx context.Context) error {
		begin, known := time.Now(), s.jumps.writtenBy(r)
		v, err := beatScript.runOn(ctx, s.beats, []string{s.keys.replicas()}, a)
		if err != nil {
			return err
		}
		s.jumps.observeTime(v[1], begin)
		if !s.jumps.takeBeat(r, known, v[2], v[3]) {
			return nil
		}
		s.hub.resyncAll()
		return s.beats.Set(ctx, s.keys.back(), known, backKept).Err() // for replicas that begin later
	})
}

// Epoch implements shim.Store. The first replica that asks an empty Redis names the epoch.
func (s *Store) Epoch(ctx context.Context) (epoch string, err error) {
	err = s.doRepeated(ctx, "epoch", func(ctx context.Context) error {
		pipe := s.client.Pipeline()
		pipe.SetNX(ctx, s.keys.epoch(), uuid.NewString(), 0)
		got := pipe.Get(ctx, s.keys.epoch())
		_, err := pipe.Exec(ctx)
		epoch = got.Val()
		return err
	})
	return epoch, err
}

// backKept is how long it is known that Redis went back.
const backKept = 24 * time.Hour

// forgetAfter is how long a replica without tasks is remembered after its heartbeat has expired. A replica
// that failed to beat for a while and reaches Redis again may begin to create a task just before it counts as
// gone. While that may be under way the replica has to be known, so that others look for the task.
const forgetAfter = 30 * time.Second

// listGone lists the replicas that are gone, as r sees it: the clock must have been steady, and the
// heartbeats complete, for a whole expiry of each.
func (s *Store) listGone(ctx context.Context, r shim.Replica) (gone []dead, err error) {
	now, entries, err := s.readBeats(ctx, r)
	for name, entry := range entries {
		if b := parseBeat(entry); !b.until.After(now) && s.jumps.isOver(b.ttl) {
			gone = append(gone, dead{name, entry, !now.Before(b.until.Add(9 * b.ttl)), !now.Before(b.until.Add(forgetAfter))})
		}
	}
	return gone, err
}

// readBeats reads the heartbeats of all replicas and the time of Redis, for a replica. It notes what these say
// of the clock, and of a Redis that went back.
func (s *Store) readBeats(ctx context.Context, r shim.Replica) (now time.Time, entries map[shim.Replica]string, err error) {
	begin, known := time.Now(), s.jumps.writtenBy(r)
	v, err := beatsScript.runOn(ctx, s.client, []string{s.keys.replicas()}, &argv{})
	if err != nil {
		return now, nil, err
	}
	entries = make(map[shim.Replica]string)
	for e := range slices.Chunk(v[2:], 2) {
		entries[shim.Replica(e[0])] = e[1]
	}
	s.jumps.observeTime(v[1], begin)
	s.jumps.compareBeat(known, entries[r])
	return parseBeat(v[1]).until, entries, nil
}

// Running implements shim.Store. A part is the sixteen shards whose hash tags begin with its digit.
func (s *Store) Running(ctx context.Context, r shim.Replica, part int) ([]shim.Held, error) {
	var out []shim.Held
	err := s.doRepeated(ctx, "running", func(ctx context.Context) (err error) {
		out, err = s.readHeld(ctx, r, part)
		return err
	})
	return out, err
}

// readHeld makes one attempt at Running. If some shards fail, it returns the tasks of the others with the
// error.
func (s *Store) readHeld(ctx context.Context, r shim.Replica, part int) (out []shim.Held, err error) {
	const n = len(shards) / shim.Parts
	p := s.client.Pipeline()
	var cmds []*redis.ZSliceCmd
	for _, tag := range shards[part*n : (part+1)*n] {
		cmds = append(cmds, p.ZRangeWithScores(ctx, s.keys.run(tag, r), 0, -1))
	}
	_, err = p.Exec(ctx)
	for _, cmd := range cmds {
		for _, z := range cmd.Val() {
			id, _ := z.Member.(string)
			out = append(out, shim.Held{ID: shim.ID(id), Version: int64(z.Score)})
		}
	}
	return out, err
}

// isReplicaGone reports whether another replica is gone: it has no heartbeat, or its last beat or its goodbye is a
// whole expiry ago. As for an adoption, that counts only while the heartbeats of the others are reliable: an
// outage, a jump of the clock or a store that went back hides them. The error is shim.ErrUnavailable if the
// store does not answer.
func (c *sessionLogs) isReplicaGone(ctx context.Context, other shim.Replica) (gone bool, err error) {
	s, own := c.store, c.heart.Replica()
	if other == own {
		return false, nil
	}
	err = s.doRepeated(ctx, "replica", func(ctx context.Context) error {
		now, entries, err := s.readBeats(ctx, own)
		b := parseBeat(entries[other])
		gone = err == nil && s.jumps.isOver(max(b.ttl, parseBeat(entries[own]).ttl)) &&
			(entries[other] == "" || c.heart.IsSteady() && !now.Before(time.UnixMilli(b.written).Add(b.ttl)))
		return err
	})
	return gone, err
}
