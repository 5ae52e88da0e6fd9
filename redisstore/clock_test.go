package redisstore

import (
	"context"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"taskgate/internal/redistest"
	"taskgate/shim"
)

// clock is what Redis takes for now.
func clock(t *testing.T, s *Store) time.Time {
	t.Helper()
	now, err := s.client.Time(t.Context()).Result()
	must(t, err)
	return now
}

// The clock of a replica decides nothing that is stored: not when a task was made, not
// when it expires, not who is alive. One replica lives in the year 2000 here, then in
// 2100, and another one, by the same Redis, now. In a synctest bubble time is made
// up, and the network is not.
func TestClockSkew(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	o := testOptions()
	now := openTest(t, redis.URL(), o)
	for name, leap := range map[string]time.Duration{"behind": 0, "ahead": 100 * 365 * 24 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			var theirs shim.Task
			synctest.Test(t, func(t *testing.T) {
				pass(leap)
				s, err := Open(context.Background(), redis.URL(), o)
				must(t, err)
				defer s.Close()
				if d := time.Since(clock(t, s)).Abs(); d < 20*365*24*time.Hour {
					t.Fatalf("the clocks differ by %v only", d)
				}
				theirs = skewed(t, s, now)
			})
			// What they did is to the other as if it had done it itself.
			same(t, theirs, read(t, now, theirs.ID, shim.Summary))
			list, _, err := now.List(t.Context(), theirs.ListKey, "", 10)
			must(t, err)
			same(t, theirs, list[len(list)-1])
			must(t, now.Beat(t.Context(), "skewed", 0))
			adopted, err := now.Adopt(t.Context(), "heir", []string{"up"}, 10)
			must(t, err)
			same(t, 1, len(adopted))
			end(t, now, adopted[0])
		})
	}
}

// skewed has a store whose clock is wrong do one of each, looks at every time that is
// stored then, and returns a task that has ended. Another task is left running.
func skewed(t *testing.T, s, other *Store) shim.Task {
	t.Helper()
	ctx, begin := t.Context(), clock(t, s).Truncate(time.Millisecond)
	must(t, s.Beat(ctx, "skewed", time.Hour))
	left := newTask()
	left.Lease = shim.Lease{Replica: "skewed"}
	left = create(t, s, left)
	_, err := s.Apply(ctx, left.ID, nil, shim.Change{TTL: 2 * time.Hour})
	must(t, err)
	hidden := newTask()
	hidden.Visible = false
	hidden = create(t, s, hidden)
	ended := end(t, s, create(t, s, newTask()))
	gone, err := s.Adopt(ctx, "early", []string{"up"}, 10)
	must(t, err)
	same(t, 0, len(gone)) // alive by the clock of Redis, for an hour
	_, err = sessionsOf(s, 10, time.Hour).Make(ctx, "session", "", "", []byte("{}"))
	must(t, err)
	finish := clock(t, s)

	for _, task := range []shim.Task{left, hidden, ended} {
		for _, at := range []time.Time{task.CreatedAt, task.UpdatedAt} {
			if at.Before(begin) || at.After(finish) {
				t.Errorf("%v is not between %v and %v", at, begin, finish)
			}
		}
	}
	for key, life := range map[string]time.Duration{
		s.keys.task(left.ID): -1, s.keys.task(hidden.ID): -1, s.keys.task(ended.ID): ended.TTL,
		s.keys.list(ended.ListKey): ended.TTL + ended.Retain + listSlack, s.keys.session("session"): time.Hour,
	} {
		ttl, err := s.client.PTTL(ctx, key).Result()
		must(t, err)
		if life < 0 && ttl != -1 || life > 0 && (ttl > life+time.Hour || ttl < life-finish.Sub(begin)-time.Minute) {
			t.Errorf("%s expires in %v, not %v", key, ttl, life)
		}
	}
	entry, err := s.client.HGet(ctx, s.keys.replicas(), "skewed").Result()
	must(t, err)
	until, _, _ := strings.Cut(entry, " ")
	ms, err := strconv.ParseInt(until, 10, 64)
	must(t, err)
	if at := time.UnixMilli(ms); at.Before(begin.Add(time.Hour)) || at.After(finish.Add(time.Hour)) {
		t.Errorf("alive until %v", at)
	}
	return ended
}
