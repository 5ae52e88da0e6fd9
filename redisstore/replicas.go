package redisstore

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"strings"
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

// Repeats is the shim.Repeats of a Store: a hash of the calls of each client, in one slot, so that one script decides
// who picks a call up. The records of the calls are elsewhere.
type Repeats struct{ store *Store }

var _ shim.Repeats = Repeats{}

// NewRepeats returns the calls of a store that may be picked up by a repeat.
func NewRepeats(s *Store) Repeats { return Repeats{s} }

// clockSlack is how far the clocks of the store and of a replica may be apart.
const clockSlack = time.Minute

// noStream stands for an empty stream in the line of a call.
const noStream = "-"

// Note implements shim.Repeats. Replicas are told before the call has its state: who looks in vain costs a moment, and
// who does not look runs the call a second time.
func (r Repeats) Note(ctx context.Context, e shim.Lingering, state shim.LingerState, from []shim.LingerState, life time.Duration) (had shim.LingerState, err error) {
	words := " "
	for _, one := range from {
		words += string(one) + " "
	}
	a := &argv{}
	a.add(string(e.ID), string(state), words, millis(life), cmp.Or(optional(e.Join, "1"), "0"), cmp.Or(e.Stream, noStream), e.Call)
	err = r.store.doRepeated(ctx, "repeat", func(ctx context.Context) error {
		if err := r.tell(ctx, shim.LingerNews{Client: e.Client, Call: e.Call, Left: state == shim.LingerLeft}, life); err != nil {
			return err
		}
		v, err := repeatNoteScript.runOn(ctx, r.store.client, []string{r.store.keys.repeatsOf(e.Client)}, a)
		if err == nil {
			had = shim.LingerState(v[0])
		}
		return err
	})
	return had, err
}

// tell tells the replicas.
func (r Repeats) tell(ctx context.Context, n shim.LingerNews, life time.Duration) error {
	a := &argv{}
	a.add(optional(n.Left, n.Client), millis(life), r.store.keys.repeatNews(), spellLinger(n))
	_, err := repeatTellScript.runOn(ctx, r.store.client, []string{r.store.keys.repeats()}, a)
	return err
}

// Take implements shim.Repeats.
func (r Repeats) Take(ctx context.Context, client, call, op string, last bool, life time.Duration) (id shim.ID, state shim.LingerState, empty bool, err error) {
	a := &argv{}
	a.add(call, op, millis(shim.PickedUpWithin), optional(last, "1"), millis(life))
	err = r.store.doRepeated(ctx, "repeat", func(ctx context.Context) error {
		v, err := repeatTakeScript.runOn(ctx, r.store.client, []string{r.store.keys.repeatsOf(client)}, a)
		if err != nil {
			return err
		}
		id, state = "", shim.LingerState(v[0])
		if state == shim.LingerTaken {
			id = shim.ID(v[1])
		}
		empty = state == shim.LingerNone && v[1] == "0"
		return nil
	})
	return id, state, empty, err
}

// Expire implements shim.Repeats.
func (r Repeats) Expire(ctx context.Context, client string, id shim.ID, force bool) (left time.Duration, err error) {
	a := &argv{}
	a.add(string(id), optional(force, "1"))
	err = r.store.doRepeated(ctx, "repeat", func(ctx context.Context) error {
		v, err := repeatExpireScript.runOn(ctx, r.store.client, []string{r.store.keys.repeatsOf(client)}, a)
		if left = 0; err == nil && v[0] == codeHeld {
			n, _ := strconv.ParseInt(v[1], 10, 64)
			left = time.Duration(n) * time.Millisecond
		}
		return err
	})
	return left, err
}

// Drop implements shim.Repeats.
func (r Repeats) Drop(ctx context.Context, e shim.Lingering) error {
	return r.store.doRepeated(ctx, "repeat", func(ctx context.Context) error {
		if err := r.store.client.HDel(ctx, r.store.keys.repeatsOf(e.Client), string(e.ID)).Err(); err != nil {
			return err
		}
		return r.tell(ctx, shim.LingerNews{Client: e.Client, Call: e.Call, Over: true}, 0)
	})
}

// Resume implements shim.Repeats.
func (r Repeats) Resume(ctx context.Context, client, stream string) error {
	a := &argv{}
	a.add(stream)
	return r.store.doRepeated(ctx, "repeat", func(ctx context.Context) error {
		_, err := repeatResumeScript.runOn(ctx, r.store.client, []string{r.store.keys.repeatsOf(client)}, a)
		return err
	})
}

// Clients implements shim.Repeats.
func (r Repeats) Clients(ctx context.Context) (clients []string, err error) {
	err = r.store.doRepeated(ctx, "repeats", func(ctx context.Context) error {
		from := time.Now().Add(-clockSlack).UnixMilli() // a client too many costs a look
		all, err := r.store.client.ZRangeByScore(ctx, r.store.keys.repeats(), &redis.ZRangeBy{Min: strconv.FormatInt(from, 10), Max: "+inf"}).Result()
		clients = all
		return err
	})
	return clients, err
}

// The words with which news begins.
const (
	newsAwaited = "awaited"
	newsLeft    = "left"
	newsOver    = "over"
)

// spellLinger spells news for the channel.
func spellLinger(n shim.LingerNews) string {
	word := newsAwaited
	if n.Left {
		word = newsLeft
	} else if n.Over {
		word = newsOver
	}
	return word + " " + n.Client + " " + n.Call
}

// parseLinger reads what spellLinger wrote.
func parseLinger(payload string) *shim.LingerNews {
	word, rest, _ := strings.Cut(payload, " ")
	client, call, _ := strings.Cut(rest, " ")
	return &shim.LingerNews{Client: client, Call: call, Left: word == newsLeft, Over: word == newsOver}
}
