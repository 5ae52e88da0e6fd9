package gatewaytest

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"taskgate/shim"
)

// since reads a stream as "state message…", and returns the number of the last one.
func (r *replica) since(id, stream string, after int64) (string, int64) {
	r.t.Helper()
	var out strings.Builder
	state, _, err := r.Since(r.t.Context(), id, stream, after, func(no int64, message []byte) {
		if message == nil {
			message = []byte("missing")
		} else if no <= after {
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

func (r *replica) readState(id, stream string) (state, note string) {
	r.t.Helper()
	state, b, err := r.State(r.t.Context(), id, stream)
	if err != nil {
		r.t.Fatal(err)
	}
	return state, string(b)
}

func (r *replica) open(id, stream string) int64 {
	r.t.Helper()
	return must[int64](r.t)(r.Open(r.t.Context(), id, stream, []byte("[1]")))
}

func (r *replica) append(id, stream, message string) int64 {
	r.t.Helper()
	return must[int64](r.t)(r.Append(r.t.Context(), id, stream, []byte(message)))
}

func (r *replica) post(id, stream, message string) int64 {
	r.t.Helper()
	return must[int64](r.t)(r.Post(r.t.Context(), id, stream, []byte(message)))
}

// ask asks a question on a stream, and returns who has it: "" where it was asked.
func (r *replica) ask(id, stream, question, void string) string {
	r.t.Helper()
	return r.askAs("asker", id, stream, question, void)
}

// askAs is ask by one of several askers.
func (r *replica) askAs(asker, id, stream, question, void string) string {
	r.t.Helper()
	no, holder, has, err := r.Ask(r.t.Context(), id, stream, asker, question, void, []byte("ask "+question))
	switch {
	case err != nil:
		r.t.Fatal(err)
	case has:
		return "the client, from " + holder
	case holder == "" && no == 0:
		return "refused"
	}
	return holder
}

func (r *replica) leave(id, stream, note string) {
	r.t.Helper()
	if err := r.Leave(r.t.Context(), id, stream, []byte(note)); err != nil {
		r.t.Fatal(err)
	}
}

func (r *replica) expect(id, stream string, after int64, want string) {
	r.t.Helper()
	if got, _ := r.since(id, stream, after); got != want {
		r.t.Errorf("%s of %s after %d: %q, want %q", stream, id, after, got, want)
	}
}

func testLogs(t *testing.T, open OpenSessions) {
	all := run(t, open(t, 10, 0, time.Hour))
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
	a.expect("s", "y", last+10, "open missing")
	if state, _ := a.readState("s", "y"); state != "open" {
		t.Errorf("it is %s", state)
	}
	a.finish("s", "x")
	b.expect("s", "x", first, `ended {"a": "three\u0000"}`)
	b.expect("other", "x", 0, "")
	b.expect(string(make([]byte, 10_000)), "x", 0, "")
	a.delete("s")
	b.expect("s", "x", 0, "")
}

// testLogBounds: the oldest messages of the stream that has the most make room, and the newest one is kept whatever
// its size.
func testLogBounds(t *testing.T, open OpenSessions) {
	a := run(t, open(t, 10, 0, time.Hour))[0]
	a.put("s", 0, "")
	a.open("s", "x")
	for range 10 {
		a.append("s", "x", "old")
	}
	var writers sync.WaitGroup
	for range 20 {
		writers.Go(func() {
			for range MaxMessages / 20 {
				if no, err := a.Append(t.Context(), "s", "x", []byte("new")); no == 0 || err != nil {
					t.Errorf("a message has number %d, %v", no, err)
				}
			}
		})
	}
	writers.Wait()
	a.expect("s", "x", 0, "open"+strings.Repeat(" new", MaxMessages))
	large := strings.Repeat("l", MaxBytes*5/4)
	no := a.append("s", "x", large)
	a.expect("s", "x", no-1, "open "+large)
	a.expect("s", "x", no, "open")
	a.append("s", "x", "small")
	a.expect("s", "x", 0, "open small")
	// The stream with the most bytes makes room, and not another one.
	a.open("s", "y")
	a.append("s", "y", "old")
	a.append("s", "y", large)
	a.expect("s", "x", 0, "open small")
	a.expect("s", "y", 0, "open old "+large)
	if who := a.ask("s", "x", "q", ""); who != "" {
		t.Errorf("%s has the question", who)
	}
	a.append("s", "y", large)
	a.expect("s", "x", 0, "open small ask q")
	a.expect("s", "y", 0, "open "+large)
}

// bury ends a lost stream with a message that says what note and messages it had.
func (r *replica) bury(id, stream string) bool {
	r.t.Helper()
	return must[bool](r.t)(r.Bury(r.t.Context(), id, stream, func(note []byte, had [][]byte) [][]byte {
		return [][]byte{fmt.Appendf(nil, "bury(%s,%s)", note, bytes.Join(had, []byte{','}))}
	}))
}

// note changes the note of a stream.
func (r *replica) note(id, stream, note string) bool {
	r.t.Helper()
	return must[bool](r.t)(r.Note(r.t.Context(), id, stream, []byte(note)))
}

func (r *replica) finish(id, stream string) {
	r.t.Helper()
	if err := r.Finish(r.t.Context(), id, stream, false); err != nil {
		r.t.Fatal(err)
	}
}

// testBury: a stream whose replica is gone is ended by one other, once. What its own
// replica has still to say is refused, if it was not gone after all.
func testBury(t *testing.T, open OpenSessions) {
	all := open(t, 10, 0, 4*time.Second)
	a, b := &replica{Sessions: all[0], t: t}, run(t, all[1:])[0]
	b.put("s", 0, "")
	b.setBusy("s", true)
	b.open("s", "own")
	if b.bury("s", "own") {
		t.Error("a replica buried a stream of its own")
	}
	for _, stream := range []string{"x", "silent", "ended", "busy"} {
		a.open("s", stream)
	}
	a.append("s", "x", "one")
	a.finish("s", "ended")
	if b.bury("s", "x") {
		t.Error("a stream was buried whose replica lives")
	}
	until(t, "the replica is lost", func() bool { got, _ := b.since("s", "x", 0); return got == "lost one" })
	for stream, want := range map[string]bool{"x": true, "silent": true, "ended": false, "none": false} {
		if got := b.bury("s", stream); got != want {
			t.Errorf("%s was buried: %t", stream, got)
		}
	}
	if b.bury("s", "x") {
		t.Error("a stream was buried twice")
	}
	b.expect("s", "x", 0, "ended one bury([1],one)")
	b.expect("s", "silent", 0, "ended bury([1],)")
	if no := a.append("s", "x", "late"); no != 0 {
		t.Errorf("what the replica before adds has number %d", no)
	}
	if a.note("s", "x", "[2]") {
		t.Error("the replica before keeps it")
	}
	a.finish("s", "x")
	b.expect("s", "x", 0, "ended one bury([1],one)")
	// A replica that was only slow, and says something while it is buried, is not lost.
	until(t, "the replica is lost again", func() bool { got, _ := b.since("s", "busy", 0); return got == "lost" })
	for what, change := range map[string]func(){
		"a note":    func() { a.note("s", "busy", "[3]") },
		"a message": func() { a.append("s", "busy", "two") },
	} {
		buried, err := b.Bury(t.Context(), "s", "busy", func([]byte, [][]byte) [][]byte {
			change()
			return [][]byte{[]byte("buried")}
		})
		if buried || err != nil {
			t.Errorf("buried in spite of %s: %t, %v", what, buried, err)
		}
		until(t, "it is lost once more", func() bool { got, _ := b.readState("s", "busy"); return got == "lost" })
	}
	b.expect("s", "busy", 0, "lost two")
}

// testKeeper: one replica keeps a stream, the one that opened it last. Only that one
// changes its note, or ends it.
func testKeeper(t *testing.T, open OpenSessions) {
	all := run(t, open(t, 10, 0, time.Hour))
	a, b := all[0], all[1]
	b.put("s", 0, "")
	a.open("s", "x")
	if !a.note("s", "x", "[2]") {
		t.Error("a replica could not change its note")
	}
	noted := func(want string) {
		t.Helper()
		if _, note := b.readState("s", "x"); note != want {
			t.Errorf("note %s, want %s", note, want)
		}
	}
	noted("[2]")
	if a != b {
		b.open("s", "x")
		if a.note("s", "x", "[3]") {
			t.Error("a replica that has lost the stream changed its note")
		}
		noted("[1]")
		a.finish("s", "x")
		b.expect("s", "x", 0, "open")
		if no := a.append("s", "x", "late"); no != 0 {
			t.Errorf("a replica that has lost the stream added number %d", no)
		}
		if no := a.post("s", "x", "left"); no == 0 {
			t.Error("what it had left was refused")
		}
	}
	b.finish("s", "x")
	if b.note("s", "x", "[4]") {
		t.Error("the note of a stream that has ended was changed")
	}
	if got, _ := b.readState("s", "x"); got != "ended" {
		t.Errorf("it is %s", got)
	}
	for _, add := range []func(id, stream, message string) int64{a.append, b.append, a.post, b.post} {
		if no := add("s", "x", "late"); no != 0 {
			t.Errorf("what came after the end has number %d", no)
		}
	}
	if a.note("s", "none", "[5]") {
		t.Error("the note of no stream was changed")
	}
}

// testWatch: who follows a log hears of more, wherever it comes from.
func testWatch(t *testing.T, open OpenSessions) {
	all := run(t, open(t, 10, 0, time.Hour))
	a, b := all[0], all[len(all)-1]
	a.put("s", 0, "")
	a.open("s", "x")
	woken := make(chan string, 64)
	stop := b.Watch("s", func() { woken <- "" })
	defer stop()
	next(t, woken, "the beginning")
	a.append("s", "x", "one")
	for got := ""; got != "open one"; got, _ = b.since("s", "x", 0) {
		next(t, woken, "a message")
	}
}

// testLeave: a stream that its replica gives up can be opened again, with what was posted
// in between. So can one that was never opened.
func testLeave(t *testing.T, open OpenSessions) {
	all := run(t, open(t, 10, 0, time.Hour))
	a, b := all[0], all[len(all)-1]
	a.put("s", 0, "")
	first := a.open("s", "x")
	a.append("s", "x", "one")
	a.leave("s", "x", "so far")
	for range 2 { // a second time it is not its own
		b.expect("s", "x", first, "left one")
		a.leave("s", "x", "again")
	}
	if _, note, err := b.Since(t.Context(), "s", "x", 0, func(int64, []byte) {}); string(note) != "so far" || err != nil {
		t.Errorf("the note is %s, %v", note, err)
	}
	if no := a.append("s", "x", "late"); no != 0 {
		t.Errorf("what it adds has number %d", no)
	}
	b.post("s", "x", "two")
	a.post("s", "new", "early")
	b.expect("s", "x", first, "left one two")
	b.expect("s", "new", 0, "left early")
	b.open("s", "x")
	b.append("s", "x", "three")
	a.expect("s", "x", first, "open one two three")
}

// testGone: nothing is kept of a session that is not there.
func testGone(t *testing.T, open OpenSessions) {
	a := run(t, open(t, 10, 0, time.Hour))[0]
	a.put("s", 0, "")
	a.open("s", "x")
	a.delete("s")
	if _, err := a.Append(t.Context(), "s", "x", []byte("one")); !errors.Is(err, shim.ErrNotFound) {
		t.Error(err)
	}
	if a.post("s", "x", "two") != 0 || a.ask("s", "x", "q", "") != "refused" {
		t.Error("something was added")
	}
	if _, err := a.Open(t.Context(), "s", "x", nil); err == nil {
		t.Error("a stream was opened")
	}
	a.put("s", 0, "")
	a.expect("s", "x", 0, "")
}

// testAsk: a question is on one stream at a time, where each asker asks it once. It is asked
// on another stream where that one is left or void, and not again where it has ended with what
// it was for.
func testAsk(t *testing.T, open OpenSessions) {
	all := run(t, open(t, 10, 0, time.Hour))
	a, b := all[0], all[len(all)-1]
	a.put("s", 0, "")
	at := a.open("s", "x")
	b.open("s", "y")
	for _, c := range []struct {
		by           *replica
		stream, void string
		want         string
	}{
		{a, "x", "", ""}, {b, "y", "", "x"}, {b, "y", "z", "x"}, {a, "x", "", ""}, {b, "y", "x", ""}, {a, "x", "", "y"},
	} {
		if got := c.by.ask("s", c.stream, "q 1", c.void); got != c.want {
			t.Errorf("on %s without %s: %s, want %s", c.stream, c.void, got, c.want)
		}
	}
	a.expect("s", "x", at, "open ask q 1")
	for _, asker := range []string{"asker", "next", "next"} {
		if got := b.askAs(asker, "s", "y", "q 1", ""); got != "" {
			t.Errorf("%s: %s", asker, got)
		}
	}
	b.expect("s", "y", at, "open ask q 1 ask q 1")
	b.leave("s", "y", "")
	if got := a.ask("s", "x", "q 1", ""); got != "" {
		t.Errorf("it was left, and is with %s", got)
	}
	a.finish("s", "x")
	if got := a.ask("s", "x", "q 2", ""); got != "refused" {
		t.Errorf("asked on what has ended: %s", got)
	}
	b.open("s", "y")
	if got := b.ask("s", "y", "q 1", ""); got != "the client, from x" {
		t.Errorf("its stream has ended, and it is with %s", got)
	}
	a.open("s", "v")
	if got := a.ask("s", "v", "q 4", ""); got != "" {
		t.Errorf("a new question is with %s", got)
	}
	if err := a.Finish(t.Context(), "s", "v", true); err != nil {
		t.Fatal(err)
	}
	if got := b.ask("s", "y", "q 4", ""); got != "" {
		t.Errorf("its stream has ended when its client had gone, and it is with %s", got)
	}
	if a != b {
		b.open("s", "z")
		a.open("s", "z")
		if got := b.ask("s", "z", "q 3", ""); got != "refused" {
			t.Errorf("asked on the stream of another replica: %s", got)
		}
	}
}

// testWatchState: who follows a log hears of a change of the state, wherever it is made,
// and finds it.
func testWatchState(t *testing.T, open OpenSessions) {
	all := run(t, open(t, 10, 0, time.Hour))
	b := all[len(all)-1]
	all[0].put("s", 0, "one")
	b.get("s")
	woken := make(chan string, 64)
	stop := b.Watch("s", func() { woken <- "" })
	defer stop()
	next(t, woken, "the beginning")
	for i, r := range all {
		_, rev := r.get("s")
		r.put("s", rev, fmt.Sprint("state ", i))
		for {
			next(t, woken, "a change")
			if state, _ := b.get("s"); state == fmt.Sprint("state ", i) {
				break
			}
		}
	}
}
