package gatewaytest

import (
	"context"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"
)

// since reads a stream as "state message…", and returns the number of the last one.
func (r *replica) since(id, stream string, after int64) (string, int64) {
	r.t.Helper()
	var out strings.Builder
	state, _, err := r.Since(r.t.Context(), id, stream, after, func(no int64, message []byte) {
		if no <= after {
			r.t.Errorf("message %d after %d", no, after)
		}
		after = no
		out.WriteString(" " + string(message))
	})
	if err != nil {
		r.t.Fatal(err)
	}
	return state + out.String(), after
}

func (r *replica) open(id, stream string) int64 {
	r.t.Helper()
	no, err := r.Open(r.t.Context(), id, stream, []byte("[1]"))
	if err != nil {
		r.t.Fatal(err)
	}
	return no
}

func (r *replica) append(id, stream, message string) int64 {
	r.t.Helper()
	no, err := r.Append(r.t.Context(), id, stream, []byte(message))
	if err != nil {
		r.t.Fatal(err)
	}
	return no
}

func (r *replica) expect(id, stream string, after int64, want string) {
	r.t.Helper()
	if got, _ := r.since(id, stream, after); got != want {
		r.t.Errorf("%s of %s after %d: %q, want %q", stream, id, after, got, want)
	}
}

func testLogs(t *testing.T, open OpenSessions) {
	all := run(t, open(t, 10, time.Hour))
	a, b := all[0], all[len(all)-1]
	for _, id := range []string{"s", "other"} {
		a.put(id, 0, "")
	}
	b.expect("s", "x", 0, "")
	x := a.open("s", "x")
	b.expect("s", "x", x, "open")
	y := b.open("s", "y")
	first := a.append("s", "x", "one")
	b.append("s", "y", "two")
	last := a.append("s", "x", `{"a": "three\u0000"}`)
	if first <= x || last <= first || y < x {
		t.Errorf("numbers %d %d %d %d", x, y, first, last)
	}
	b.expect("s", "x", x, `open one {"a": "three\u0000"}`)
	b.expect("s", "x", first, `open {"a": "three\u0000"}`)
	a.expect("s", "y", 0, "open two")
	a.expect("s", "y", last+10, "open")
	a.expect("s", "y", math.MaxInt64, "open")
	if err := a.Finish(t.Context(), "s", "x"); err != nil {
		t.Fatal(err)
	}
	b.expect("s", "x", first, `ended {"a": "three\u0000"}`)
	b.expect("other", "x", 0, "")
	b.expect(string(make([]byte, 10_000)), "x", 0, "")
	if err := a.Delete(t.Context(), "s"); err != nil {
		t.Fatal(err)
	}
	b.expect("s", "x", 0, "")
}

// testLogBounds: the oldest messages make room, and the newest one is kept whatever
// its size.
func testLogBounds(t *testing.T, open OpenSessions) {
	a := run(t, open(t, 10, time.Hour))[0]
	a.put("s", 0, "")
	a.open("s", "x")
	for i := range 1010 {
		a.append("s", "x", fmt.Sprint(i))
	}
	got, _ := a.since("s", "x", 0)
	if fields := strings.Fields(got); len(fields) != 1001 || fields[1] != "10" {
		t.Errorf("%d messages, the first is %s", len(fields)-1, fields[1])
	}
	large := strings.Repeat("l", 5<<20)
	no := a.append("s", "x", large)
	a.expect("s", "x", 0, "open "+large)
	a.expect("s", "x", no, "open")
	a.append("s", "x", "small")
	a.expect("s", "x", 0, "open small")
}

// testWatch: who follows a log hears of more, wherever it comes from.
func testWatch(t *testing.T, open OpenSessions) {
	all := run(t, open(t, 10, time.Hour))
	a, b := all[0], all[len(all)-1]
	a.put("s", 0, "")
	a.open("s", "x")
	ctx, stop := context.WithCancel(t.Context())
	woken, done := make(chan string, 64), make(chan struct{})
	go func() {
		defer close(done)
		b.Watch(ctx, "s", func() { woken <- "" })
	}()
	next(t, woken, "the beginning")
	a.append("s", "x", "one")
	for got := ""; got != "open one"; got, _ = b.since("s", "x", 0) {
		next(t, woken, "a message")
	}
	stop()
	<-done
}
