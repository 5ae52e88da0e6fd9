package redisstore

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"taskgate/internal/redistest"
	"taskgate/shim"
)

// A repeat of a message that was added, after its reply was lost, is told from a second
// message, though another replica has added to the stream in between. It has the number of the first.
func TestLogRepeats(t *testing.T) {
	t.Parallel()
	c := openTest(t, redistest.Start(t).URL(), testOptions()).Sessions(10, time.Hour)
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
	c := openTest(t, server.URL(), testOptions()).Sessions(10, time.Hour).Keep(20, 1<<20, time.Hour)
	ctx := t.Context()
	since := func(stream string) (said string) {
		t.Helper()
		state, _, err := c.Since(ctx, "s", stream, 0, func(_ int64, m []byte) { said += string(m) })
		must(t, err)
		return state + " " + said
	}
	makeSession(t, c, "s", "open")
	for i := range 100 {
		stream := fmt.Sprint("x", i)
		_, err := c.Open(ctx, "s", stream, []byte("[1]"))
		must(t, err)
		_, err = c.Append(ctx, "s", stream, []byte(stream))
		must(t, err)
		must(t, c.Finish(ctx, "s", stream, false))
		must(t, c.Finish(ctx, "s", stream, false)) // a repeat is no second end
		same(t, "ended "+stream, since(stream))
	}
	for i := 91; i < 100; i++ {
		same(t, fmt.Sprint("ended x", i), since(fmt.Sprint("x", i)))
	}
	same(t, " ", since("x0"))
	same(t, "open ", since("open"))
	// The log has four fields of its own and 20 entries, of which 10 are ends with two fields each; the open stream
	// has two.
	if n, _ := server.Do("hlen", c.store.keys.log("s")[1]).(int64); n > 4+20+2 {
		t.Errorf("%d fields are left of 100 streams", n)
	}
	// A large answer stays until something comes after its end.
	large := strings.Repeat("l", 2<<20)
	_, err := c.Open(ctx, "s", "large", nil)
	must(t, err)
	_, err = c.Append(ctx, "s", "large", []byte(large))
	must(t, err)
	must(t, c.Finish(ctx, "s", "large", false))
	if got := since("large"); got != "ended "+large {
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

// So it does if the session is not used any more.
func TestLogOfAnUnusedSessionIsCleared(t *testing.T) {
	bubble(t, func(t *testing.T, s *Store) {
		c := s.Sessions(10, 24*time.Hour)
		ctx := t.Context()
		stop := runSessions(t, c, false, nil)
		makeSession(t, c, "s", "call")
		_, err := c.Append(ctx, "s", "call", []byte(strings.Repeat("l", 1<<20)))
		must(t, err)
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
	c := openTest(t, url, testOptions()).Sessions(10, 8*time.Second).Keep(1000, 4<<20, 40*time.Millisecond)
	ctx := t.Context()
	makeSession(t, c, "s")
	append := func(stream, message string) int64 {
		t.Helper()
		no, err := c.Append(ctx, "s", stream, []byte(message))
		if err != nil || no == 0 {
			t.Fatal(no, err)
		}
		return no
	}
	since := func(stream string, after int64) (said string) {
		t.Helper()
		state, _, err := c.Since(ctx, "s", stream, after, func(_ int64, m []byte) { said += " " + string(m[:1]) })
		must(t, err)
		return state + said
	}
	for _, stream := range []string{"early", "get", "late"} {
		_, err := c.Open(ctx, "s", stream, nil)
		must(t, err)
	}
	large := strings.Repeat("l", 1<<20)
	append("early", large)
	a := append("get", "a")
	append("late", large)
	_, holder, _, err := c.Ask(ctx, "s", "late", "asker", "question", "", []byte("q"))
	same(t, "", holder)
	must(t, err)
	must(t, c.Finish(ctx, "s", "late", false))
	append("get", "b")
	stop := runSessions(t, c, true, nil)
	eventually(t, "the stream that has ended is gone", func() bool { return since("late", 0) == "" })
	same(t, "open l", since("early", 0))
	same(t, "open a b", since("get", 0))
	same(t, "open b", since("get", a))
	must(t, c.Finish(ctx, "s", "early", false))
	eventually(t, "and so is the other one", func() bool { return since("early", 0) == "" })
	append("get", "c")
	same(t, "open a b c", since("get", 0))
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
	c, reader := store.Sessions(10, time.Hour), openTest(t, redis.URL(), o).Sessions(10, time.Hour)
	makeSession(t, c, "s", "get")
	add := func(stream, message string) int64 {
		t.Helper()
		no, err := c.Append(t.Context(), "s", stream, []byte(message))
		must(t, err)
		return no
	}
	read := func(stream string, after int64) (got string) {
		t.Helper()
		state, _, err := reader.Since(t.Context(), "s", stream, after, func(_ int64, m []byte) {
			if got += " " + string(m); m == nil {
				got += "missing"
			}
		})
		must(t, err)
		return state + got
	}
	first := add("get", "one")
	goBack := dumpLog(t, store, "s")
	last := add("get", "two")
	_, err := c.Open(t.Context(), "s", "call", nil)
	must(t, err)
	goBack()
	same(t, "open one", read("get", first-1))
	if no := add("get", "three"); no <= last {
		t.Errorf("number %d after %d", no, last)
	}
	same(t, "open three", read("get", last))
	same(t, "open one missing three", read("get", first-1))
	same(t, "", read("call", 0))
	add("call", "answer")
	same(t, "open missing answer", read("call", 0))

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
	c, other := store.Sessions(10, time.Hour), openTest(t, redis.URL(), o).Sessions(10, time.Hour)
	makeSession(t, c, "s", "call")
	_, err := other.Open(t.Context(), "s", "other", nil)
	must(t, err)
	add := func(c *Sessions, stream, message string) int64 {
		t.Helper()
		no, err := c.Append(t.Context(), "s", stream, []byte(message))
		must(t, err)
		return no
	}
	one := int64(0)
	read := func(want string) {
		t.Helper()
		got := ""
		state, _, err := other.Since(t.Context(), "s", "call", one, func(_ int64, m []byte) {
			if got += " " + string(m); m == nil {
				got += "missing"
			}
		})
		must(t, err)
		same(t, want, state+got)
	}
	one = add(c, "call", "one")
	add(other, "other", "aside")
	goBack := dumpLog(t, store, "s")
	add(c, "call", "two")
	goBack()
	for range 3 {
		add(other, "other", "aside")
	}
	add(c, "call", "three")
	read("open missing three")
	add(other, "other", "aside")
	add(c, "call", "four")
	read("open missing three four")
}

// A stream that was left more than once, and one that was left before it ended, is forgotten when the last entry that
// says so goes, and not when an earlier one does: its client has yet to come back.
func TestLogKeepsAStreamThatWasLeftAgain(t *testing.T) {
	t.Parallel()
	c := openTest(t, redistest.Start(t).URL(), testOptions()).Sessions(10, time.Hour).Keep(12, 1<<20, time.Hour)
	ctx := t.Context()
	makeSession(t, c, "s")
	for _, stream := range []string{"ended", "left"} {
		_, err := c.Open(ctx, "s", stream, nil)
		must(t, err)
		must(t, c.Leave(ctx, "s", stream, []byte("note")))
		_, err = c.Open(ctx, "s", stream, nil)
		must(t, err)
		_, err = c.Append(ctx, "s", stream, []byte("answer"))
		must(t, err)
	}
	must(t, c.Finish(ctx, "s", "ended", false))
	must(t, c.Leave(ctx, "s", "left", []byte("note")))
	since := func(stream string) (said string) {
		t.Helper()
		state, note, err := c.Since(ctx, "s", stream, 0, func(_ int64, m []byte) { said += " " + string(m) })
		must(t, err)
		return state + string(note) + said
	}
	for n, want := range []string{
		6: "ended answer, leftnote answer", 7: "ended, leftnote answer", 8: "ended, leftnote answer",
		9: "ended, leftnote", 10: ", leftnote", 11: ", ",
	} {
		_, err := c.Append(ctx, "s", "other", []byte("more"))
		must(t, err)
		if got := since("ended") + ", " + since("left"); want != "" && got != want {
			t.Errorf("after %d messages of another stream: %q, not %q", n+1, got, want)
		}
	}
}

// A Redis that takes over without the newest messages may be behind in time, too. No number is given out twice then
// by a replica that knows a later one.
func TestLogOfOlderRedisThatIsBehind(t *testing.T) {
	t.Parallel()
	c := openTest(t, "embedded", testOptions()).Sessions(10, time.Hour)
	makeSession(t, c, "s")
	add := func(message string) int64 {
		t.Helper()
		no, err := c.Append(t.Context(), "s", "get", []byte(message))
		must(t, err)
		return no
	}
	last := add("lost")
	must(t, c.store.client.Del(t.Context(), c.store.keys.log("s")...).Err())
	c.store.embedded.server.SetTime(time.Now().Add(-time.Minute))
	if no := add("one"); no <= last {
		t.Errorf("number %d after %d", no, last)
	}
	add("two")
	got := ""
	_, _, err := c.Since(t.Context(), "s", "get", last, func(_ int64, m []byte) { got += " " + string(m) })
	must(t, err)
	same(t, " one two", got)
}
