package redisstore

import (
	"strconv"
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
