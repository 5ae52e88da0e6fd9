package redisstore

import (
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"taskgate/internal/redistest"
	"taskgate/shim"
)

// say adds a message to a stream of the session "s", and returns its number.
func say(t *testing.T, c *Sessions, stream, message string) int64 {
	t.Helper()
	no, err := c.Append(t.Context(), "s", stream, []byte(message))
	must(t, err)
	same(t, true, no != 0)
	return no
}

// since is what a reader of a stream gets after a number: its state and note, and each message after a space.
func since(t *testing.T, c *Sessions, stream string, after int64) (said string) {
	t.Helper()
	state, note, err := c.Since(t.Context(), "s", stream, after, func(_ int64, m []byte) {
		if said += " " + string(m); m == nil {
			said += "missing"
		}
	})
	must(t, err)
	return state + string(note) + said
}

// A repeat of a message that was added, after its reply was lost, is told from a second
// message, though another replica has added to the stream in between. It has the number of the first.
func TestLogRepeats(t *testing.T) {
	t.Parallel()
	c := sessionsOf(openTest(t, redistest.Start(t).URL(), testOptions()), 10, time.Hour)
	makeSession(t, c, "s", "x")
	add := func(op string) string {
		t.Helper()
		v, err := c.changeLog(t.Context(), "s", "x", "add", []byte(op), op)
		must(t, err)
		return v[1]
	}
	first, other := add("first"), add("other")
	same(t, first, add("first"))
	same(t, other, add("other"))
	third, fourth, fifth := add("third"), add("fourth"), add("fifth")
	same(t, third, add("third"))
	_, err := c.Post(t.Context(), "s", "y", []byte("third"))
	must(t, err)
	same(t, third, add("third"))
	var messages, numbers []string
	_, _, err = c.Since(t.Context(), "s", "x", 0, func(no int64, m []byte) {
		messages, numbers = append(messages, string(m)), append(numbers, strconv.FormatInt(no, 10))
	})
	must(t, err)
	same(t, []string{"first", "other", "third", "fourth", "fifth"}, messages)
	same(t, []string{first, other, third, fourth, fifth}, numbers)
}

// What is known of streams that have ended is bounded, and a stream that has just ended can
// be read to its end.
func TestLogForgetsEndedStreams(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	c := sessionsOf(openTest(t, server.URL(), testOptions()), 10, time.Hour).Keep(20, 1<<20, time.Hour)
	ctx := t.Context()
	makeSession(t, c, "s", "open")
	for i := range 100 {
		stream := fmt.Sprint("x", i)
		_, err := c.Open(ctx, "s", stream, []byte("[1]"))
		must(t, err)
		say(t, c, stream, stream)
		must(t, c.Finish(ctx, "s", stream, false))
		must(t, c.Finish(ctx, "s", stream, false)) // a repeat is no second end
		same(t, "ended "+stream, since(t, c, stream, 0))
	}
	for i := 91; i < 100; i++ {
		same(t, fmt.Sprint("ended x", i), since(t, c, fmt.Sprint("x", i), 0))
	}
	same(t, "", since(t, c, "x0", 0))
	same(t, "open", since(t, c, "open", 0))
	// The log has four fields of its own and 20 entries, of which 10 are ends with two fields each; the open stream
	// has two.
	if n, _ := server.Do("hlen", c.store.keys.log("s")[1]).(int64); n > 4+20+2 {
		t.Errorf("%d fields are left of 100 streams", n)
	}
	// A large answer stays until something comes after its end.
	large := strings.Repeat("l", 2<<20)
	_, err := c.Open(ctx, "s", "large", nil)
	must(t, err)
	say(t, c, "large", large)
	must(t, c.Finish(ctx, "s", "large", false))
	if got := since(t, c, "large", 0); got != "ended "+large {
		t.Errorf("of a large answer there are %d bytes", len(got))
	}
}

// What a stream had leaves the log of a session that lives on a while after its end. What
// other streams have stays, under its numbers.
func TestLogOfAnEndedStreamLeaves(t *testing.T) {
	t.Parallel()
	for name, url := range map[string]string{"redis": redistest.Start(t).URL(), "embedded": "embedded"} {
		t.Run(name, func(t *testing.T) { endedStreamLeaves(t, url) })
	}
}

// All logs together have a bound in a store of this process, and one owner has half of it. Beyond that the oldest messages
// go first, and a large message is not kept. A start counts what is there.
func TestLogsHaveABoundTogether(t *testing.T) {
	t.Parallel()
	path, o := filepath.Join(t.TempDir(), "store"), testOptions()
	s := fileStore(t, path, o)
	const most = 1 << 20
	c := sessionsOf(s, 100, time.Hour).Halve(true)
	c.KeepInAll(most)
	ctx := t.Context()
	fill := func(c *Sessions, owner string, sessions int) (bytes int64) {
		for i := range sessions {
			id := fmt.Sprint(owner, i)
			_, err := c.Make(ctx, id, owner, "", []byte("state"))
			must(t, err)
			_, err = c.Open(ctx, id, "x", nil)
			must(t, err)
			for range 100 {
				_, err := c.Append(ctx, id, "x", []byte(strings.Repeat("l", 8<<10)))
				must(t, err)
			}
			n, err := s.client.HGet(ctx, s.keys.log(id)[1], "bytes").Int64()
			must(t, err)
			bytes += n
		}
		return bytes
	}
	if n := fill(c, "mallory", 10); n > most*3/4 || n < most/3 {
		t.Errorf("one owner has %d bytes", n)
	}
	_, err := c.Append(ctx, "mallory9", "x", []byte(strings.Repeat("l", 64<<10)))
	if _, busy := errors.AsType[*shim.BusyError](err); !busy {
		t.Errorf("a large message: %v", err)
	}
	if n := fill(c, "honest", 1); n < most/3 {
		t.Errorf("another owner has %d bytes", n)
	}
	must(t, c.Delete(ctx, "mallory0"))
	c.room.counted = time.Time{} // it was counted just now
	if n := fill(c, "mallory-", 1); n < leastLog {
		t.Errorf("%d bytes", n)
	}
	again := sessionsOf(fileStore(t, killed(t, path), o), 100, time.Hour).Halve(true)
	again.KeepInAll(most)
	same(t, c.room.all, again.room.all)
	same(t, c.room.owners, again.room.owners)
}

// So it does if the session is not used any more.
func TestLogOfAnUnusedSessionIsCleared(t *testing.T) {
	bubble(t, func(t *testing.T, s *Store) {
		c := sessionsOf(s, 10, 24*time.Hour)
		ctx := t.Context()
		stop := runSessions(t, c, false, nil)
		makeSession(t, c, "s", "call")
		say(t, c, "call", strings.Repeat("l", 1<<20))
		must(t, c.Finish(ctx, "s", "call", false))
		pass(2 * logAfterEnd)
		n, err := s.client.XLen(ctx, s.keys.log("s")[0]).Result()
		must(t, err)
		same(t, 0, int(n))
		_, rev, err := c.Get(ctx, "s")
		same(t, true, rev != 0)
		must(t, err)
		stop()
	})
}

func endedStreamLeaves(t *testing.T, url string) {
	c := sessionsOf(openTest(t, url, testOptions()), 10, 8*time.Second).Keep(1000, 4<<20, 40*time.Millisecond)
	ctx := t.Context()
	makeSession(t, c, "s", "early", "get", "late")
	large := strings.Repeat("l", 1<<20)
	say(t, c, "early", large)
	a := say(t, c, "get", "a")
	say(t, c, "late", large)
	_, holder, _, err := c.Ask(ctx, "s", "late", "asker", "question", "", []byte("q"))
	same(t, "", holder)
	must(t, err)
	must(t, c.Finish(ctx, "s", "late", false))
	say(t, c, "get", "b")
	stop := runSessions(t, c, true, nil)
	eventually(t, "the stream that has ended is gone", func() bool { return since(t, c, "late", 0) == "" })
	same(t, true, since(t, c, "early", 0) == "open "+large)
	same(t, "open a b", since(t, c, "get", 0))
	same(t, "open b", since(t, c, "get", a))
	must(t, c.Finish(ctx, "s", "early", false))
	eventually(t, "and so is the other one", func() bool { return since(t, c, "early", 0) == "" })
	say(t, c, "get", "c")
	same(t, "open a b c", since(t, c, "get", 0))
	about := c.store.keys.log("s")[1]
	if n, err := c.store.client.HGet(ctx, about, "bytes").Result(); err != nil || len(n) > 2 {
		t.Errorf("%s bytes count, %v", n, err)
	}
	// last, bytes, due, the number that its replica knows; and of the open stream its replica, its note and its operations.
	if n, err := c.store.client.HLen(ctx, about).Result(); err != nil || n > 7 {
		t.Errorf("%d fields are left, %v", n, err)
	}
	stop()
}

// dumpLog keeps the log of a session as it is, and has Redis go back to that.
func dumpLog(t *testing.T, store *Store, id string) (goBack func()) {
	t.Helper()
	older := map[string]string{}
	for _, key := range store.keys.log(id) {
		older[key] = store.client.Dump(t.Context(), key).Val()
	}
	return func() {
		t.Helper()
		for key, dump := range older {
			must(t, store.client.RestoreReplace(t.Context(), key, 0, dump).Err())
		}
	}
}

// Redis comes back as it was some messages ago. No number is given out twice, so that a reader who was further gets
// what is said from then on; and a stream that had begun since is kept by whoever adds to it.
func TestLogOfOlderRedis(t *testing.T) {
	t.Parallel()
	redis, o := redistest.Start(t), testOptions()
	store := openTest(t, redis.URL(), o)
	c, reader := sessionsOf(store, 10, time.Hour), sessionsOf(openTest(t, redis.URL(), o), 10, time.Hour)
	makeSession(t, c, "s", "get")
	first := say(t, c, "get", "one")
	goBack := dumpLog(t, store, "s")
	last := say(t, c, "get", "two")
	_, err := c.Open(t.Context(), "s", "call", nil)
	must(t, err)
	goBack()
	same(t, "open one", since(t, reader, "get", first-1))
	if no := say(t, c, "get", "three"); no <= last {
		t.Errorf("number %d after %d", no, last)
	}
	same(t, "open three", since(t, reader, "get", last))
	same(t, "open one missing three", since(t, reader, "get", first-1))
	same(t, "", since(t, reader, "call", 0))
	say(t, c, "call", "answer")
	same(t, "open missing answer", since(t, reader, "call", 0))

	must(t, store.client.Del(t.Context(), store.keys.session("s")).Err())
	_, err = c.Append(t.Context(), "s", "call", []byte("answer"))
	is(t, err, shim.ErrNotFound)
}

// Redis comes back as it was some messages ago, and another replica, which has not seen them, is the first to add one.
// A reader that goes on with the stream that had them learns that messages are missing.
func TestLogOfOlderRedisAtAnother(t *testing.T) {
	t.Parallel()
	redis, o := redistest.Start(t), testOptions()
	store := openTest(t, redis.URL(), o)
	c, other := sessionsOf(store, 10, time.Hour), sessionsOf(openTest(t, redis.URL(), o), 10, time.Hour)
	makeSession(t, c, "s", "call")
	_, err := other.Open(t.Context(), "s", "other", nil)
	must(t, err)
	one := say(t, c, "call", "one")
	say(t, other, "other", "aside")
	goBack := dumpLog(t, store, "s")
	say(t, c, "call", "two")
	goBack()
	for range 3 {
		say(t, other, "other", "aside")
	}
	say(t, c, "call", "three")
	same(t, "open missing three", since(t, other, "call", one))
	say(t, other, "other", "aside")
	say(t, c, "call", "four")
	same(t, "open missing three four", since(t, other, "call", one))
}

// A stream that was left more than once, and one that was left before it ended, is forgotten when the last entry that
// says so goes, and not when an earlier one does: its client has yet to come back.
func TestLogKeepsAStreamThatWasLeftAgain(t *testing.T) {
	t.Parallel()
	c := sessionsOf(openTest(t, redistest.Start(t).URL(), testOptions()), 10, time.Hour).Keep(12, 1<<20, time.Hour)
	ctx := t.Context()
	makeSession(t, c, "s")
	for _, stream := range []string{"ended", "left"} {
		_, err := c.Open(ctx, "s", stream, nil)
		must(t, err)
		must(t, c.Leave(ctx, "s", stream, []byte("note")))
		_, err = c.Open(ctx, "s", stream, nil)
		must(t, err)
		say(t, c, stream, "answer")
	}
	must(t, c.Finish(ctx, "s", "ended", false))
	must(t, c.Leave(ctx, "s", "left", []byte("note")))
	for n, want := range []string{
		6: "ended answer, leftnote answer", 7: "ended, leftnote answer", 8: "ended, leftnote answer",
		9: "ended, leftnote", 10: ", leftnote", 11: ", ",
	} {
		say(t, c, "other", "more")
		if got := since(t, c, "ended", 0) + ", " + since(t, c, "left", 0); want != "" && got != want {
			t.Errorf("after %d messages of another stream: %q, not %q", n+1, got, want)
		}
	}
}

// A Redis that takes over without the newest messages may be behind in time, too. No number is given out twice then
// by a replica that knows a later one.
func TestLogOfOlderRedisThatIsBehind(t *testing.T) {
	t.Parallel()
	c := sessionsOf(openTest(t, "embedded", testOptions()), 10, time.Hour)
	makeSession(t, c, "s")
	last := say(t, c, "get", "lost")
	must(t, c.store.client.Del(t.Context(), c.store.keys.log("s")...).Err())
	c.store.embedded.server.SetTime(time.Now().Add(-time.Minute))
	if no := say(t, c, "get", "one"); no <= last {
		t.Errorf("number %d after %d", no, last)
	}
	say(t, c, "get", "two")
	same(t, "open one two", since(t, c, "get", last))
}
