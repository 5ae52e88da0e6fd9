package redisstore

import (
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	"taskgate/internal/redistest"
	"taskgate/shim"
)

// countedTask is a task of an owner, with a call of so many bytes, that has to fit.
func countedTask(t *testing.T, bytes int, room int64) shim.Task {
	task := newTask(t)
	task.Owner, task.Room = "alice", room
	task.Call = json.RawMessage(`"` + strings.Repeat("x", bytes-2) + `"`)
	return task
}

// sum is how many bytes the tasks of a list take, as far as is known.
func sum(t *testing.T, s *Store, listKey string) int {
	t.Helper()
	text, err := s.client.HGet(t.Context(), s.keys.lists(listKey)[1], "sum").Result()
	must(t, err)
	n, err := strconv.Atoi(text)
	must(t, err)
	return n
}

// A change whose reply was lost is counted, once.
func TestCountOfRepeatedWrites(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	proxy := redistest.NewProxy(t, server.Addr)
	s := openTest(t, proxy.URL(), testOptions())
	task := countedTask(t, 10_000, 0)
	for range 2 { // of the list, and of the task
		proxy.Next(redistest.DropReply, "evalsha")
		create(t, s, task)
		same(t, 10_000+overhead, sum(t, s, task.ListKey))
	}
	proxy.Next(redistest.DropReply, "evalsha")
	outcome := &shim.Outcome{Result: json.RawMessage(`"` + strings.Repeat("x", 30_000) + `"`)}
	_, err := s.Apply(t.Context(), task.ID, &task.Lease, shim.Change{Op: "end", To: shim.Completed, Outcome: outcome})
	must(t, err)
	same(t, 30_002+overhead, sum(t, s, task.ListKey))
}

// What is counted of a list that is full is compared with its tasks, at most every ten
// seconds: tasks that are not there count no more, and the others as they are.
func TestCountHeals(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := openTest(t, server.URL(), testOptions())
	kept, lost := create(t, s, countedTask(t, 10_000, 0)), create(t, s, countedTask(t, 50_000, 0))
	list := s.keys.lists(kept.ListKey)
	for _, id := range []shim.ID{kept.ID, lost.ID} { // a young entry may be of a task that is just being made
		server.Do("zadd", list[0], "1", string(id))
	}
	server.Do("del", s.keys.task(lost.ID))
	server.Do("hset", list[1], string(kept.ID), "90000", "sum", 90_000+50_000+overhead)

	var busy *shim.BusyError
	_, err := s.Create(t.Context(), countedTask(t, 10_000, 100_000))
	if !errors.As(err, &busy) || busy.RetryAfter != sweepFull {
		t.Fatalf("a list that seems to be full: %v", err)
	}
	same(t, 10_000+overhead, sum(t, s, kept.ListKey))
	create(t, s, countedTask(t, 10_000, 100_000))

	server.Do("hset", list[1], string(kept.ID), "90000", "sum", 90_000+10_000+overhead)
	if _, err := s.Create(t.Context(), countedTask(t, 10_000, 100_000)); !errors.As(err, &busy) {
		t.Fatalf("so soon after the last look: %v", err)
	}
	if n := sum(t, s, kept.ListKey); n < 90_000 {
		t.Errorf("%d bytes are counted: it was looked again at once", n)
	}
	server.Do("hset", list[1], "looked", "1")
	if _, err := s.Create(t.Context(), countedTask(t, 10_000, 100_000)); !errors.As(err, &busy) {
		t.Fatalf("a list that seems to be full: %v", err)
	}
	same(t, 2*(10_000+overhead), sum(t, s, kept.ListKey))
}

// What is counted goes with the tasks: nothing of it stays in Redis for longer.
func TestCountExpires(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := openTest(t, server.URL(), testOptions())
	task := create(t, s, countedTask(t, 1000, 0))
	keys := s.keys.lists(task.ListKey)
	for i, most := range []time.Duration{2*time.Hour + listSlack, 2*time.Hour + countSlack, 2*time.Hour + countSlack} {
		left, _ := server.Do("pttl", keys[i]).(int64)
		if d := time.Duration(left) * time.Millisecond; d > most || d < most-time.Minute {
			t.Errorf("%s expires in %v, want %v", keys[i], d, most)
		}
	}
	end(t, s, task)
	score, _ := server.Do("zscore", keys[2], string(task.ID)).(string)
	until, err := strconv.ParseFloat(score, 64)
	must(t, err)
	if d := time.Until(time.UnixMilli(int64(until))); d > time.Hour || d < time.Hour-time.Minute {
		t.Errorf("an ended task counts for %v", d)
	}
}

// A small task takes about what it counts for.
func TestOverhead(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := openTest(t, server.URL(), testOptions())
	used := func() (n int64) {
		for _, key := range server.Keys("*") {
			size, _ := server.Do("memory", "usage", key, "samples", "0").(int64)
			n += size
		}
		return n
	}
	before := used()
	const n = 200
	for range n {
		task := newTask(t)
		task.Owner, task.Upstream, task.Origin, task.Method, task.Tool = "alice", "up", "ext", "tools/call", "slow"
		task.StatusMessage = "working"
		end(t, s, create(t, s, task))
	}
	if each := (used() - before) / n; each > overhead || each < overhead/4 {
		t.Errorf("a task without anything takes %d bytes, and counts for %d", each, overhead)
	}
}
