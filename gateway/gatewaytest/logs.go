package gatewaytest

import (
	"context"
	"errors"
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

func (r *replica) take(id, stream string) (taken, fresh bool) {
	r.t.Helper()
	taken, fresh, err := r.Take(r.t.Context(), id, stream, []byte("note"))
	if err != nil {
		r.t.Fatal(err)
	}
	return taken, fresh
}

// testTake: of a replica that is gone one other takes each stream, and goes on with its
// numbers. What the one before has still to say is refused, if it was not gone after all.
func testTake(t *testing.T, open OpenSessions) {
	all := open(t, 10, 4*time.Second)
	a, live := &replica{Sessions: all[0], t: t}, run(t, all[1:])
	b, c := live[0], live[len(live)-1]
	b.put("s", 0, "")
	b.setBusy("s", true)
	b.open("s", "own")
	if taken, _ := b.take("s", "own"); taken {
		t.Error("a replica took a stream from itself")
	}
	a.open("s", "x")
	a.open("s", "fresh")
	a.open("s", "ended")
	first := a.append("s", "x", "one")
	if err := a.Finish(t.Context(), "s", "ended"); err != nil {
		t.Fatal(err)
	}
	if taken, _ := b.take("s", "x"); taken {
		t.Error("a stream was taken from a replica that lives")
	}
	until(t, "the replica is lost", func() bool { got, _ := b.since("s", "x", 0); return got == "lost one" })
	if taken, fresh := b.take("s", "x"); !taken || fresh {
		t.Errorf("taken %t, fresh %t", taken, fresh)
	}
	if taken, fresh := c.take("s", "fresh"); !taken || !fresh {
		t.Errorf("the other: taken %t, fresh %t", taken, fresh)
	}
	for _, stream := range []string{"x", "ended", "none"} {
		if taken, _ := c.take("s", stream); taken && c != b {
			t.Errorf("%s was taken", stream)
		}
	}
	b.expect("s", "x", 0, "open one")
	if _, note, err := b.Since(t.Context(), "s", "x", math.MaxInt64, func(int64, []byte) {}); err != nil || string(note) != "note" {
		t.Errorf("note %s, %v", note, err)
	}
	if no := a.append("s", "x", "late"); no != 0 {
		t.Errorf("what the replica before adds has number %d", no)
	}
	if err := a.Finish(t.Context(), "s", "x"); err != nil {
		t.Fatal(err)
	}
	if no := b.append("s", "x", "two"); no <= first {
		t.Errorf("number %d", no)
	}
	b.expect("s", "x", 0, "open one two")
	if err := b.Finish(t.Context(), "s", "x"); err != nil {
		t.Fatal(err)
	}
	b.expect("s", "x", first, "ended two")
	a.open("s", "fresh") // begun anew
	a.append("s", "fresh", "again")
	b.expect("s", "fresh", 0, "open again")
}

// testLeave: a stream that its replica has left is another one's to take, at once, and may
// come back.
func testLeave(t *testing.T, open OpenSessions) {
	all := run(t, open(t, 10, time.Hour))
	a, b := all[0], all[1]
	b.put("s", 0, "")
	a.open("s", "x")
	b.open("s", "left")
	if err := errors.Join(b.Leave(t.Context(), "s", "left"), a.Leave(t.Context(), "s", "x")); err != nil {
		t.Fatal(err)
	}
	b.expect("s", "left", 0, "lost")
	if taken, fresh := b.take("s", "left"); !taken || !fresh {
		t.Errorf("one that was left: taken %t, fresh %t", taken, fresh)
	}
	if taken, _ := a.take("s", "left"); taken {
		t.Error("it was taken from a replica that lives")
	}
	if err := b.Leave(t.Context(), "s", "left"); err != nil {
		t.Fatal(err)
	}
	if taken, _ := a.take("s", "left"); !taken || a.append("s", "left", "back") == 0 {
		t.Error("it was not taken back")
	}
	if err := a.Leave(t.Context(), "s", "left"); err != nil {
		t.Fatal(err)
	}
	if taken, fresh := b.take("s", "left"); !taken || fresh || b.append("s", "left", "and forth") == 0 {
		t.Error("nor once more")
	}
	b.expect("s", "left", 0, "open back and forth")
	b.expect("s", "x", 0, "lost")
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
