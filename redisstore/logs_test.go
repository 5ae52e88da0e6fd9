package redisstore

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"taskgate/internal/redistest"
)

// A repeat of a message that was added, after its reply was lost, is told from a second
// message, though another replica has added to the stream in between.
func TestLogRepeats(t *testing.T) {
	t.Parallel()
	c := openTest(t, redistest.Start(t).URL(), testOptions()).Sessions(10, time.Hour)
	add := func(op string, want int64) {
		t.Helper()
		v, err := c.log(t.Context(), "s", "x", "add", []byte(op), op)
		must(t, err)
		if v[1] != strconv.FormatInt(want, 10) {
			t.Errorf("after %s there are %s messages, want %d", op, v[1], want)
		}
	}
	add("first", 1)
	add("other", 2)
	add("first", 2)
	add("other", 2)
	for i, op := range []string{"third", "fourth", "fifth"} {
		add(op, int64(3+i))
	}
	add("third", 5)
}

// What is known of streams that have ended is bounded, and a stream that has just ended can
// be read to its end.
func TestLogForgetsEndedStreams(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	c := openTest(t, server.URL(), testOptions()).Sessions(10, time.Hour).Keep(20, 1<<20)
	ctx := t.Context()
	since := func(stream string) (said string) {
		t.Helper()
		state, _, err := c.Since(ctx, "s", stream, 0, func(_ int64, m []byte) { said += string(m) })
		must(t, err)
		return state + " " + said
	}
	_, err := c.Open(ctx, "s", "open", nil)
	must(t, err)
	for i := range 100 {
		stream := fmt.Sprint("x", i)
		_, err := c.Open(ctx, "s", stream, []byte("[1]"))
		must(t, err)
		_, err = c.Append(ctx, "s", stream, []byte(stream))
		must(t, err)
		must(t, c.Finish(ctx, "s", stream))
		must(t, c.Finish(ctx, "s", stream)) // a repeat is no second end
		same(t, "ended "+stream, since(stream))
	}
	for i := 91; i < 100; i++ {
		same(t, fmt.Sprint("ended x", i), since(fmt.Sprint("x", i)))
	}
	same(t, " ", since("x0"))
	same(t, "open ", since("open"))
	// The log has 20 entries, of which 10 are ends; the open stream has two fields.
	if n, _ := server.Do("hlen", c.store.keys.log("s")[1]).(int64); n > 2+10+2 {
		t.Errorf("%d fields are left of 100 streams", n)
	}
	// A large answer stays until something comes after its end.
	large := strings.Repeat("l", 2<<20)
	_, err = c.Open(ctx, "s", "large", nil)
	must(t, err)
	_, err = c.Append(ctx, "s", "large", []byte(large))
	must(t, err)
	must(t, c.Finish(ctx, "s", "large"))
	if got := since("large"); got != "ended "+large {
		t.Errorf("of a large answer there are %d bytes", len(got))
	}
}
