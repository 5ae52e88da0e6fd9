package redisstore

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"taskgate/shim"
	"taskgate/shim/shimtest"

	"github.com/redis/go-redis/v9"
)

// fileStore opens a store in a folder.
func fileStore(t *testing.T, path string, o Options) *Store {
	t.Helper()
	return openTest(t, "file:"+path, o)
}

// killed is what a folder has now: what a start would find if the process were killed.
func killed(t *testing.T, path string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "killed")
	for { // a rewrite may remove a file meanwhile
		must(t, os.RemoveAll(dir))
		err := os.CopyFS(dir, os.DirFS(path))
		if !errors.Is(err, fs.ErrNotExist) {
			must(t, err)
			return dir
		}
	}
}

// After a kill everything acknowledged is there, and its replica counts as gone: so its tasks
// go on at the process that starts anew.
func TestFileKeeps(t *testing.T) {
	t.Parallel()
	path, o := filepath.Join(t.TempDir(), "store"), testOptions()
	s := fileStore(t, path, o)
	must(t, s.Beat(t.Context(), held.Replica, time.Hour))
	epoch, err := s.Epoch(t.Context())
	must(t, err)
	y := tell(t, s)
	sessions := sessionsOf(s, 10, time.Hour)
	_, err = sessions.Make(t.Context(), "session", "owner", "", []byte("state"))
	must(t, err)
	number, err := sessions.Post(t.Context(), "session", "stream", []byte("message"))
	must(t, err)
	must(t, s.SetRefused(t.Context(), "up:token", time.Hour))

	again := fileStore(t, killed(t, path), o)
	y.kept(t, again)
	got, err := again.Epoch(t.Context())
	must(t, err)
	same(t, epoch, got)
	_, _, err = again.List(t.Context(), y.running.ListKey, "", 10)
	must(t, err)
	sessions = sessionsOf(again, 10, time.Hour)
	state, _, err := sessions.Get(t.Context(), "session")
	must(t, err)
	same(t, "state", string(state))
	_, _, err = sessions.Since(t.Context(), "session", "stream", 0, func(no int64, message []byte) {
		same(t, "message", string(message))
		same(t, number, no)
		state = nil
	})
	must(t, err)
	same(t, true, state == nil)
	refused, err := again.IsRefused(t.Context(), "up:token")
	must(t, err)
	same(t, true, refused)

	must(t, again.Beat(t.Context(), "heir", time.Hour))
	adopted, err := again.Adopt(t.Context(), "heir", []string{"up"}, 10)
	must(t, err)
	same(t, 1, len(adopted))
	same(t, y.running.ID, adopted[0].ID)
	same(t, held.Replica, adopted[0].From)
}

// A session that has expired stays away after a restart, although its client came with it.
func TestFileKeepsNoExpiredSession(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		path, o := filepath.Join(t.TempDir(), "store"), testOptions()
		s := fileStore(t, path, o)
		_, err := sessionsOf(s, 10, time.Millisecond).Make(t.Context(), "session", "owner", "", []byte("state"))
		must(t, err)
		pass(time.Millisecond + s.opts.slack) // it expires by the clock that is in the files as well
		eventually(t, "the session expires", func() bool { return s.client.Exists(t.Context(), s.keys.session("session")).Val() == 0 })
		for _, s := range []*Store{s, fileStore(t, killed(t, path), o)} {
			state, rev, err := sessionsOf(s, 10, time.Minute).Get(t.Context(), "session") // which would keep it for another minute
			must(t, err)
			same(t, 0, len(state)+int(rev))
		}
	})
}

// contents is all that an embedded store has, each key with its type, value and expiry.
func contents(t *testing.T, s *Store) map[string]string {
	t.Helper()
	all := map[string]string{}
	e := s.embedded
	for _, key := range e.recorder.asleep.sleepingKeys() {
		must(t, s.client.Exists(t.Context(), key).Err())
	}
	for _, key := range e.server.Keys() {
		if e.recorder.isVolatile(key) {
			continue
		}
		r := e.recorder
		line := ""
		switch e.server.Type(key) {
		case "hash":
			words := r.askWords("HGETALL", key)
			slices.Sort(words)
			line = fmt.Sprint(words)
		case "list":
			line = fmt.Sprint(r.askWords("LRANGE", key, "0", "-1"))
		case "stream":
			entries, err := e.server.Stream(key)
			must(t, err)
			line = fmt.Sprint(entries)
		case "zset":
			line = fmt.Sprint(r.askWords("ZRANGE", key, "0", "-1", "WITHSCORES"))
		case "string":
			line = fmt.Sprint(r.askWords("GET", key))
		}
		expires := "never"
		if left := e.server.TTL(key); left > 0 {
			expires = time.Now().Add(left).Round(5 * time.Minute).UTC().Format(time.TimeOnly)
		}
		all[key] = e.server.Type(key) + " " + line + " " + expires
	}
	return all
}

// A folder with more of tasks than half of the memory limit is refused, and the error says what helps; it stays as it is.
// What has expired does not count.
func TestFolderLargerThanMemory(t *testing.T) {
	t.Parallel()
	path, o := filepath.Join(t.TempDir(), "store"), testOptions()
	s := fileStore(t, path, o)
	body := `"` + strings.Repeat("x", 1<<20) + `"`
	keep := func() shim.Task {
		task, err := s.Create(t.Context(), newTask())
		must(t, err)
		must(t, s.client.RPush(t.Context(), s.keys.batches(task.ID), body).Err())
		task, err = s.Apply(t.Context(), task.ID, &task.Lease, shim.Change{Op: "end", To: shim.Completed, Outcome: &shim.Outcome{Result: []byte(body)}})
		must(t, err)
		return task
	}
	last := keep()
	for range 4 {
		task := keep()
		for _, key := range []string{s.keys.task(task.ID), s.keys.batches(task.ID)} {
			must(t, s.client.PExpire(t.Context(), key, time.Millisecond).Err())
		}
	}
	kept := killed(t, path)
	o.MemoryLimit = 5 << 20
	s = fileStore(t, kept, o)
	got, err := s.Get(t.Context(), last.ID, shim.WithOutcome)
	must(t, err)
	same(t, body, string(got.Outcome.Result))
	must(t, s.Close())
	o.MemoryLimit = 3 << 20
	_, err = Open(t.Context(), "file:"+kept, o)
	for _, words := range []string{"2 MiB of tasks", "GOMEMLIMIT=5MiB", "does so at ", "move the folder away"} {
		if err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("no %q in %v", words, err)
		}
	}
	o.MemoryLimit = 0
	_, err = fileStore(t, kept, o).Get(t.Context(), last.ID, shim.WithOutcome)
	must(t, err)
}

// Whatever is done to keys of each type, with rewrites and starts between, a start finds the same. Records of tasks are
// hashes which sleep after a start.
func TestFileHoldsEachType(t *testing.T) {
	t.Parallel()
	path, o := filepath.Join(t.TempDir(), "store"), testOptions()
	s := fileStore(t, path, o)
	ctx := t.Context()
	key := func(kind string) string { return kind + strconv.Itoa(rand.N(4)) }
	hash := func() string { return key([]string{"hash", s.keys.task("00")}[rand.N(2)]) }
	list := func() string { return key([]string{"list", s.keys.batches("00")}[rand.N(2)]) }
	large := strings.Repeat("x", readLater)
	word := func() string { return []string{"", "a", "b", "c\x00\r\n", "ü", large}[rand.N(6)] }
	number := func() float64 { return float64(rand.N(int64(4e15))) }
	id := 0
	changes := []func(redis.Pipeliner){
		func(p redis.Pipeliner) { p.SetNX(ctx, key("string"), word(), 0) },
		func(p redis.Pipeliner) { p.HSet(ctx, hash(), word(), word(), word(), word()) },
		func(p redis.Pipeliner) { p.HIncrBy(ctx, hash(), "n", 3) },
		func(p redis.Pipeliner) { p.HDel(ctx, hash(), word()) },
		func(p redis.Pipeliner) { p.RPush(ctx, list(), word(), word()) },
		func(p redis.Pipeliner) { p.LTrim(ctx, list(), -3, -1) },
		func(p redis.Pipeliner) {
			id++
			p.XAdd(ctx, &redis.XAddArgs{Stream: key("stream"), ID: strconv.Itoa(id), Values: []string{"a", word(), "b", word()}})
		},
		func(p redis.Pipeliner) { p.XDel(ctx, key("stream"), strconv.Itoa(1+rand.N(id+1))) },
		func(p redis.Pipeliner) { p.ZAdd(ctx, key("zset"), redis.Z{Score: number(), Member: word()}) },
		func(p redis.Pipeliner) { p.ZRem(ctx, key("zset"), word()) },
		func(p redis.Pipeliner) { p.PExpire(ctx, hash(), time.Duration(1+rand.N(9))*time.Hour) },
		func(p redis.Pipeliner) { p.PExpire(ctx, list(), time.Duration(1+rand.N(9))*time.Hour) },
		func(p redis.Pipeliner) { p.PExpire(ctx, hash(), time.Millisecond) },
		func(p redis.Pipeliner) { p.Persist(ctx, hash()) },
		func(p redis.Pipeliner) {
			p.Del(ctx, key([]string{"string", "hash", "list", "stream", "zset"}[rand.N(5)]))
		},
		func(p redis.Pipeliner) { p.Del(ctx, hash()) },
	}
	for round := range 3 * shimtest.Rounds(4) {
		p := s.client.Pipeline()
		for range 150 {
			changes[rand.N(len(changes))](p)
		}
		_, _ = p.Exec(ctx) // some are refused
		if round%3 == 1 {
			must(t, s.embedded.recorder.rewriteJournal(ctx))
		}
		s.embedded.server.FastForward(2 * time.Millisecond) // what expires is made anew at once
		if round%3 == 2 {
			before := s
			for range 2 { // at the second start the records are as a rewrite has left them
				path = killed(t, path)
				s = fileStore(t, path, o)
				must(t, s.embedded.recorder.rewriteJournal(ctx))
			}
			same(t, contents(t, before), contents(t, fileStore(t, killed(t, path), o)))
		}
	}
	c := s.client
	for i := range 4 { // and is gone at last, whatever is said of it then
		hash := "hash" + strconv.Itoa(i)
		must(t, c.HSet(ctx, hash, "a", "b").Err())
		must(t, c.PExpire(ctx, hash, time.Millisecond).Err())
	}
	s.embedded.server.FastForward(2 * time.Millisecond)
	must(t, c.PExpire(ctx, "hash0", time.Hour).Err())
	must(t, c.PExpireAt(ctx, "hash1", time.Now().Add(time.Hour)).Err())
	must(t, c.Persist(ctx, "hash2").Err())
	want := contents(t, s)
	if len(want) < 4 {
		t.Fatalf("only %d keys", len(want))
	}
	same(t, want, contents(t, fileStore(t, killed(t, path), o)))
	must(t, s.embedded.recorder.rewriteJournal(ctx))
	dir := killed(t, path)
	names, err := filepath.Glob(filepath.Join(dir, "journal-*"))
	must(t, err)
	same(t, 1, len(names))
	same(t, want, contents(t, fileStore(t, dir, o)))
}

// A start finds what it should while others write and a rewrite is under way, whenever the
// process is killed.
func TestFileRewritesUnderLoad(t *testing.T) {
	t.Parallel()
	path, o := filepath.Join(t.TempDir(), "store"), testOptions()
	o.journal.Floor = 1 << 12
	s := fileStore(t, path, o)
	var mu sync.Mutex
	acknowledged := map[shim.ID]shim.Task{}
	ctx, stop := context.WithCancel(t.Context())
	var writers sync.WaitGroup
	for range 4 {
		writers.Go(func() {
			for ctx.Err() == nil {
				task, err := s.Create(ctx, newTask(), content("[0]"))
				if err == nil && rand.N(2) == 0 {
					task, err = s.Apply(ctx, task.ID, &task.Lease, shim.Change{Op: "end", To: shim.Completed})
				}
				if err == nil {
					mu.Lock()
					acknowledged[task.ID] = task
					mu.Unlock()
				}
			}
		})
	}
	var want map[shim.ID]shim.Task
	for kills := 0; kills < shimtest.Rounds(12) || len(want) < shimtest.Rounds(100); kills++ {
		mu.Lock()
		want = maps.Clone(acknowledged)
		mu.Unlock()
		again := fileStore(t, killed(t, path), o)
		for id, task := range want {
			if got := read(t, again, id, shim.Summary); got.Version < task.Version {
				t.Fatalf("task %s has version %d, acknowledged was %d", id, got.Version, task.Version)
			}
			same(t, []string{"[0]"}, batches(t, again, id))
		}
		must(t, again.Close())
	}
	stop()
	finish(t, &writers, "the writers end")
}

// disk is one that a test fills or halts.
type disk struct {
	full atomic.Bool
	halt sync.RWMutex
}

func (d *disk) options() Options {
	o := testOptions()
	o.RetryFor = 20 * time.Millisecond
	o.journal.RetryAfter = 10 * time.Millisecond
	o.journal.BeforeWrite = func() error {
		d.halt.RLock()
		defer d.halt.RUnlock()
		if d.full.Load() {
			return syscall.ENOSPC
		}
		return nil
	}
	return o
}

// Nobody learns of what is not on disk: neither who wrote it, nor who reads it or is woken.
func TestFileTellsNothingEarly(t *testing.T) {
	t.Parallel()
	var d disk
	s := fileStore(t, t.TempDir(), d.options())
	other := create(t, s, newTask())
	task := create(t, s, newTask())
	next := watching(t, s.Watch(t.Context(), task.ID))
	d.halt.Lock()
	goOn := sync.OnceFunc(d.halt.Unlock)
	t.Cleanup(goOn)
	done := make(chan shim.Task, 1)
	go func() { done <- end(t, s, task) }()
	eventually(t, "the end is in memory", func() bool {
		return s.embedded.server.HGet(s.keys.task(task.ID), fieldStatus) == string(shim.Completed)
	})
	brief, stop := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer stop()
	got, err := s.Get(brief, task.ID, shim.Summary)
	if err == nil { // else it is the end of the time, of whoever has seen it first
		t.Fatal("the end is read, and not on disk")
	}
	same(t, shim.Status(""), got.Status)
	same(t, other, read(t, s, other.ID, shim.Summary))
	same(t, 0, len(done))
	goOn()
	same(t, task.ID, next().ID)
	ended := receive(t, done, "the end")
	same(t, ended, read(t, s, task.ID, shim.Summary))
}

// On a full disk new tasks are refused, and reads and heartbeats go on. What was under way is
// told as soon as there is room.
func TestFileOnAFullDisk(t *testing.T) {
	t.Parallel()
	var d disk
	path, o := t.TempDir(), d.options()
	s := fileStore(t, path, o)
	task := create(t, s, newTask())
	d.full.Store(true)
	_, err := s.Apply(t.Context(), task.ID, &task.Lease, shim.Change{Op: "end", To: shim.Completed})
	is(t, err, shim.ErrUnavailable)
	refused := newTask()
	_, err = s.Create(t.Context(), refused)
	is(t, err, shim.ErrUnavailable)
	is(t, s.Ping(t.Context()), shim.ErrUnavailable)
	if _, err := s.Get(t.Context(), refused.ID, shim.Summary); !errors.Is(err, shim.ErrNotFound) {
		t.Errorf("a task that was refused: %v", err)
	}
	must(t, s.Beat(t.Context(), held.Replica, time.Minute))
	d.full.Store(false)
	eventually(t, "there is room", func() bool { return s.Ping(t.Context()) == nil })
	same(t, shim.Completed, end(t, s, task).Status)
	create(t, s, refused)
	again := fileStore(t, killed(t, path), o)
	same(t, shim.Completed, read(t, again, task.ID, shim.Summary).Status)
	same(t, refused.ID, read(t, again, refused.ID, shim.Summary).ID)
}

// Under constant load the files stay as large as what is in them, about.
func TestFileGivesPlaceBack(t *testing.T) {
	t.Parallel()
	path, o := t.TempDir(), testOptions()
	o.journal.Floor, o.tick = 1<<14, time.Millisecond
	s := fileStore(t, path, o)
	size := func() (n int64) {
		names, err := filepath.Glob(filepath.Join(path, "journal-*"))
		must(t, err)
		for _, name := range names {
			if info, err := os.Stat(name); err == nil {
				n += info.Size()
			}
		}
		return n
	}
	var writers sync.WaitGroup
	for range 10 {
		writers.Go(func() {
			for range 15 {
				task := newTask()
				task.TTL, task.Retain = time.Millisecond, time.Millisecond
				if task, err := s.Create(t.Context(), task); err == nil {
					_, _ = s.Apply(t.Context(), task.ID, &task.Lease, shim.Change{Op: "end", To: shim.Completed})
				}
			}
		})
	}
	finish(t, &writers, "the writers end")
	if n := size(); n > 1<<17 { // 150 tasks have written more than that
		t.Errorf("the files have %d bytes", n)
	}
	eventually(t, "what has expired goes", func() bool {
		must(t, s.embedded.recorder.rewriteJournal(t.Context()))
		return size() < 1<<14+1<<13
	})
}

// The clock goes back by an hour between two starts, and again while the process runs: what was
// stored is there, numbers go on where they were, and a replica of before counts as gone.
func TestFileWhenTheClockGoesBack(t *testing.T) {
	t.Parallel()
	path, o := filepath.Join(t.TempDir(), "store"), testOptions()
	s := fileStore(t, path, o)
	s.embedded.server.SetTime(time.Now().Add(time.Hour))
	must(t, s.Beat(t.Context(), held.Replica, time.Hour))
	y := tell(t, s)
	sessions := sessionsOf(s, 10, time.Hour)
	_, err := sessions.Make(t.Context(), "session", "owner", "", []byte("state"))
	must(t, err)
	last := int64(0)
	post := func(s *Store, message int) {
		t.Helper()
		number, err := sessionsOf(s, 10, time.Hour).Post(t.Context(), "session", "stream", fmt.Append(nil, message))
		must(t, err)
		if number <= last {
			t.Errorf("number %d after %d", number, last)
		}
		last = number
	}
	post(s, 1)
	s.embedded.server.SetTime(time.Time{})
	post(s, 2)

	again := fileStore(t, killed(t, path), o)
	y.kept(t, again)
	post(again, 3)
	var messages []string
	_, _, err = sessionsOf(again, 10, time.Hour).Since(t.Context(), "session", "stream", 0, func(_ int64, message []byte) {
		messages = append(messages, string(message))
	})
	must(t, err)
	same(t, []string{"1", "2", "3"}, messages)
	must(t, again.Beat(t.Context(), "heir", time.Hour))
	adopted, err := again.Adopt(t.Context(), "heir", []string{"up"}, 10)
	must(t, err)
	same(t, 1, len(adopted))
}

// A command that is recorded is read as it was, and a part of it is none.
func TestFileDecodesLines(t *testing.T) {
	t.Parallel()
	line := []string{"HSET", ""}
	for _, n := range []int{1, 64, 1000, 3, 0} {
		line = append(line, strings.Repeat(strconv.Itoa(n%7), n))
	}
	entry := encodeLine(line)
	words, err := splitLine(entry)
	must(t, err)
	same(t, line, toLine(words))
	for n := range entry {
		if _, err := splitLine(entry[:n]); !errors.Is(err, errEntry) {
			t.Fatalf("%d bytes: %v", n, err)
		}
	}
}

// A start says what the folder has of ended tasks, and whose they are.
func TestFileSaysWhatIsKept(t *testing.T) {
	t.Parallel()
	path, o := filepath.Join(t.TempDir(), "store"), testOptions()
	s := fileStore(t, path, o)
	task := newTask()
	task.Owner = "mallory"
	create(t, s, newTask())
	ended := end(t, s, create(t, s, task, content("["+strings.Repeat("1,", 5000)+"1]")))
	kept := fileStore(t, killed(t, path), o).Kept()
	same(t, 1, len(kept))
	same(t, shim.Share{Owner: "mallory"}, kept[0].Share)
	same(t, true, kept[0].Bytes > 10_000 && kept[0].Bytes < 15_000)
	same(t, true, !kept[0].Until.Before(ended.ExpiresAt()))
}
