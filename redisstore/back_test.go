package redisstore

import (
	"context"
	"errors"
	"io"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"taskgate/shim"
)

// around calls before each command or pipeline that has a script, and may fail it. Without a script it is each
// pipeline.
type around struct {
	redis.Hook
	script *script
	before func() error
}

func (a *around) DialHook(next redis.DialHook) redis.DialHook { return next }

func (a *around) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if a.script == nil {
			return next(ctx, cmd)
		}
		one := a.ProcessPipelineHook(func(ctx context.Context, cmds []redis.Cmder) error { return next(ctx, cmds[0]) })
		return one(ctx, []redis.Cmder{cmd})
	}
}

func (a *around) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		has := func(cmd redis.Cmder) bool {
			return a.script == nil || slices.Contains(cmd.Args(), any(a.script.sha)) || slices.Contains(cmd.Args(), any(a.script.source))
		}
		if a.before != nil && slices.ContainsFunc(cmds, has) {
			if err := a.before(); err != nil {
				return err
			}
		}
		return next(ctx, cmds)
	}
}

// A replica that beats again while its tasks are looked for keeps them. An adoption that Redis executes long after it was
// asked for is none: the old runner may be back.
func TestAdoptionOfWhoIsBack(t *testing.T) {
	for name, c := range map[string]struct {
		script *script
		before func(t *testing.T, s *Store) error
	}{
		"beats":      {runningScript, func(t *testing.T, s *Store) error { return s.Beat(t.Context(), held.Replica, time.Hour) }},
		"long after": {adoptScript, func(*testing.T, *Store) error { pass(adoptWithin); return nil }},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *Store) {
				ids := bereaved(t, s, shards[7])
				s.client.AddHook(&around{script: c.script, before: func() error { return c.before(t, s) }})
				got, err := heir(t, s, 10)
				must(t, err)
				same(t, 0, len(got))
				same(t, held, read(t, s, ids[0], shim.Summary).Lease)
			})
		})
	}
}

// A connection that cannot be set up, since Redis refuses the password, say, does not read
// as a replica that has no tasks.
func TestRefusedConnectionIsNoAnswer(t *testing.T) {
	bubble(t, func(t *testing.T, s *Store) {
		ids := bereaved(t, s, shards[7])
		h := &around{before: func() error { return refusal("WRONGPASS invalid username-password pair or user is disabled.") }}
		s.client.AddHook(h)
		for range 3 {
			_, err := heir(t, s, 10)
			is(t, err, shim.ErrUnavailable)
			pass(forgetAfter)
		}
		h.before = nil
		got, err := heir(t, s, 10)
		must(t, err)
		same(t, ids, got)
	})
}

// A shard that cannot be read keeps back only what it has.
func TestRunningBesideLostShards(t *testing.T) {
	bubble(t, func(t *testing.T, s *Store) {
		near := create(t, s, ofShard(t, s, []string{shards[8]}))
		create(t, s, ofShard(t, s, []string{shards[7]}))
		h := newHole(s)
		h.err, h.tags = io.EOF, []string{shards[7]}
		found, err := s.readHeld(t.Context(), held.Replica, 0)
		is(t, err, io.EOF)
		same(t, []shim.Held{{ID: near.ID}}, found)
	})
}

// A Redis that went back to an older state has older heartbeats. Those of the living are
// renewed at their next beat; until that must have been nobody is gone. Everybody who
// watches reads again.
func TestStoreThatWentBack(t *testing.T) {
	const ttl = 5 * time.Second
	bubble(t, func(t *testing.T, s *Store) {
		ctx := t.Context()
		beat := func() {
			t.Helper()
			must(t, errors.Join(s.Beat(ctx, held.Replica, ttl), s.Beat(ctx, "heir", ttl)))
		}
		beat()
		task := create(t, s, newTask())
		older, err := s.client.HGetAll(ctx, s.keys.replicas()).Result()
		must(t, err)
		for range 4 {
			pass(ttl / 2)
			beat()
		}
		next := watching(t, s.Watch(ctx, task.ID))
		must(t, s.client.HSet(ctx, s.keys.replicas(), older).Err())
		got, err := heir(t, s, 10)
		must(t, err)
		same(t, 0, len(got))
		beat()
		same(t, shim.Event{Synced: true}, next())
		got, err = heir(t, s, 10)
		must(t, err)
		same(t, 0, len(got))

		for range 3 { // its runner is gone for good
			pass(ttl / 2)
			must(t, s.Beat(ctx, "heir", ttl))
		}
		got, err = heir(t, s, 10)
		must(t, err)
		same(t, []shim.ID{task.ID}, got)
	})
}
