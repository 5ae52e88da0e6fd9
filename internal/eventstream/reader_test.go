package eventstream

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/tmaxmax/go-sse"
	"pgregory.net/rapid"
)

// all reads to the end and keeps the data.
func all(r *Reader) (evs []Event, err error) {
	for {
		ev, err := r.Next()
		if err != nil {
			return evs, err
		}
		ev.Data = append([]byte{}, ev.Data...)
		evs = append(evs, ev)
	}
}

func TestReader(t *testing.T) {
	data := func(s string) Event { return Event{Data: []byte(s)} }
	for _, tt := range []struct {
		name, in string
		want     []Event
		err      error
	}{
		{"empty", "", nil, io.EOF},
		{"one", "data: x\n\n", []Event{data("x")}, io.EOF},
		{"CRLF", "data: x\r\n\r\n", []Event{data("x")}, io.EOF},
		{"one space goes", "data:  x\n\ndata:x\n\n", []Event{data(" x"), data("x")}, io.EOF},
		{"lines join", "data: a\ndata\ndata: b\n\n", []Event{data("a\n\nb")}, io.EOF},
		{"empty data", "data\n\ndata:\ndata:\n\n", []Event{data(""), data("\n")}, io.EOF},
		{"colon in data", "data: a: b\n\n", []Event{data("a: b")}, io.EOF},
		{"lone CR is data", "data: a\rb\n\n", []Event{data("a\rb")}, io.EOF},
		{"type", "event: endpoint\ndata: /x\n\ndata: y\n\n", []Event{{Type: "endpoint", Data: []byte("/x")}, data("y")}, io.EOF},
		{"type alone is no event", "event: x\n\ndata: y\n\n", []Event{data("y")}, io.EOF},
		{"id is not sticky", "id: 7\ndata: x\n\ndata: y\n\n", []Event{{ID: "7", HasID: true, Data: []byte("x")}, data("y")}, io.EOF},
		{"empty id", "id\ndata: x\n\n", []Event{{HasID: true, Data: []byte("x")}}, io.EOF},
		{"id with NUL", "id: a\x00b\ndata: x\n\n", []Event{data("x")}, io.EOF},
		{"priming", "id: 7\nretry: 1500\ndata: \n\n", []Event{{ID: "7", HasID: true, Retry: 1500 * time.Millisecond, HasRetry: true, Data: []byte{}}}, io.EOF},
		{"id alone", "id: 7\n\n", []Event{{ID: "7", HasID: true, Data: []byte{}}}, io.EOF},
		{"retry alone", "retry: 0\n\n", []Event{{HasRetry: true, Data: []byte{}}}, io.EOF},
		{"retry nonsense", "retry: 1s\n\nretry:\n\nretry: -1\n\n", nil, io.EOF},
		{"retry huge", "retry: 99999999999999999999\n\n", []Event{{HasRetry: true, Retry: math.MaxInt64, Data: []byte{}}}, io.EOF},
		{"comments", ": hi\n\n:\n: data: x\ndata: y\n: z\n\n", []Event{data("y")}, io.EOF},
		{"unknown fields", "Data: x\nfoo\ndata : x\n\n", nil, io.EOF},
		{"byte order mark", "\xef\xbb\xbfdata: x\n\n", []Event{data("x")}, io.EOF},
		{"second byte order mark", "\xef\xbb\xbf\xef\xbb\xbfdata: x\n\n", nil, io.EOF},
		{"cut before the blank line", "data: x\n\ndata: y\n", []Event{data("x")}, io.ErrUnexpectedEOF},
		{"cut inside a line", "data: x\n\nda", []Event{data("x")}, io.ErrUnexpectedEOF},
		{"cut after a comment", "data: x\n\n: bye\n", []Event{data("x")}, io.EOF},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for name, src := range map[string]io.Reader{
				"whole":    strings.NewReader(tt.in),
				"bytes":    iotest.OneByteReader(strings.NewReader(tt.in)),
				"data+err": iotest.DataErrReader(strings.NewReader(tt.in)),
			} {
				got, err := all(NewReader(src, 1000))
				if d := cmp.Diff(tt.want, got); d != "" || err != tt.err {
					t.Errorf("%s: error %v, want %v; %s", name, err, tt.err, d)
				}
			}
		})
	}
}

// The last event of a stream that has ended counts without its blank line, where that is wished.
func TestKeepLast(t *testing.T) {
	for in, want := range map[string][]Event{
		"data: x\n\ndata: y\n":   {{Data: []byte("x")}, {Data: []byte("y"), Cut: true}},
		"data: a\r\ndata: b\r":   {{Data: []byte("a\nb"), Cut: true}},
		"id: 7\ndata: a":         {{ID: "7", HasID: true, Data: []byte("a"), Cut: true}},
		"data: x\n\nevent: y\n":  {{Data: []byte("x")}},
		"data: x\n\n: bye":       {{Data: []byte("x")}},
		"data: x\n\ndata: y\n\n": {{Data: []byte("x")}, {Data: []byte("y")}},
	} {
		for name, src := range map[string]io.Reader{"whole": strings.NewReader(in), "bytes": iotest.OneByteReader(strings.NewReader(in))} {
			r := NewReader(src, 1000)
			r.KeepLast()
			got, err := all(r)
			if d := cmp.Diff(want, got); d != "" || err != io.EOF && err != io.ErrUnexpectedEOF {
				t.Errorf("%q, %s: %v; %s", in, name, err, d)
			}
		}
	}
}

func TestReaderLimit(t *testing.T) {
	ok := ": a comment does not count\ndata: 3456789\n\n" // 15 bytes
	var tooLarge *TooLargeError
	for _, tt := range []struct {
		in string
		ok bool
	}{
		{strings.Repeat(ok, 3), true},
		{"data: 34567890\n\n", false},
		{"data: 3\ndata: 9\n\n", false},
		{"data: 3456789012345", false}, // without any line end
		{":" + strings.Repeat("x", 40) + "\n", false},
	} {
		limit := 15
		if tt.ok {
			limit = len(ok) // the comment line itself has to fit
		}
		r := NewReader(strings.NewReader(tt.in), limit)
		_, err := all(r)
		if errors.As(err, &tooLarge) == tt.ok {
			t.Errorf("%q: %v", tt.in, err)
		}
		if _, again := r.Next(); again != err {
			t.Errorf("%q: first %v, then %v", tt.in, err, again)
		}
	}
	if tooLarge.Limit != 15 || tooLarge.Error() != "event larger than 15 bytes" {
		t.Error(tooLarge)
	}
}

func TestReaderSourceErrors(t *testing.T) {
	broken := errors.New("broken")
	r := NewReader(io.MultiReader(strings.NewReader("data: x\n\ndata: y\n"), iotest.ErrReader(broken)), 100)
	evs, err := all(r)
	if len(evs) != 1 || err != broken {
		t.Errorf("%v, %v", evs, err)
	}
	if _, err := NewReader(idle{}, 100).Next(); err != io.ErrNoProgress {
		t.Errorf("source that does nothing: %v", err)
	}
}

type idle struct{}

func (idle) Read([]byte) (int, error) { return 0, nil }

// A stream waits with a buffer of some bytes, at first and after it has carried a large event.
func TestReaderGivesBufferBack(t *testing.T) {
	big := "data: " + strings.Repeat("x", 1<<20) + "\n\n"
	src := &sizes{r: strings.NewReader(big + "data: y\n\n")}
	r := NewReader(src, 2<<20)
	if _, err := r.Next(); err != nil || cap(r.buf) < 1<<20 {
		t.Fatalf("%v, buffer of %d bytes held a larger event", err, cap(r.buf))
	}
	if _, err := r.Next(); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Next(); err != io.EOF || r.buf != nil || r.in != nil {
		t.Fatalf("%v, with a buffer of %d bytes", err, cap(r.buf))
	}
	if src.first != idleBuffer || src.last != idleBuffer {
		t.Errorf("reads of %d bytes first and %d last", src.first, src.last)
	}
}

// The buffer of what has arrived goes back with the last event of it, with a comment, with the end, and when the reader
// stops in the middle.
func TestReaderGivesArrivedBack(t *testing.T) {
	pieces := func(p ...string) *Reader {
		var all []io.Reader
		for _, one := range p {
			all = append(all, strings.NewReader(one))
		}
		return NewReader(io.MultiReader(all...), 1000)
	}
	long := "data: " + strings.Repeat("x", 100) + "\n\n"
	for name, r := range map[string]*Reader{"alone": pieces(long), "the last": pieces(long+long, long)} {
		for range strings.Count(name, "last") + 1 {
			if _, err := r.Next(); err != nil {
				t.Fatal(err)
			}
		}
		if r.in != nil {
			t.Errorf("%s: kept behind an event with nothing after it", name)
		}
	}
	for name, r := range map[string]*Reader{
		"end": pieces(": " + long), "cut": pieces("data: x\n"), "too large": pieces(strings.Repeat(": x", 1000)),
	} {
		if _, err := r.Next(); err == nil || r.in != nil {
			t.Errorf("%s: kept, or no error: %v", name, err)
		}
	}
	r := pieces(long + long + ": x\n")
	if _, err := r.Next(); err != nil || r.in == nil {
		t.Fatalf("the second event was not read ahead: %v", err)
	}
	r.Release()
	if r.in != nil {
		t.Error("kept after Release")
	}
	r.Release()
}

// sizes remembers how much room reads offer.
type sizes struct {
	r           io.Reader
	first, last int
}

func (s *sizes) Read(p []byte) (int, error) {
	if s.first == 0 {
		s.first = len(p)
	}
	s.last = len(p)
	return s.r.Read(p)
}

// go-sse reads the same events from streams that stay inside what both support.
func TestReaderAgreesWithGoSSE(t *testing.T) {
	text := rapid.StringOf(rapid.RuneFrom([]rune("a: é\x00")))
	field := rapid.Custom(func(t *rapid.T) string {
		name := rapid.SampledFrom([]string{"data", "event", "id", "retry", "", "foo"}).Draw(t, "name")
		if rapid.IntRange(0, 5).Draw(t, "form") == 0 && name != "" {
			return name
		}
		return name + rapid.SampledFrom([]string{":", ": "}).Draw(t, "colon") + text.Draw(t, "value")
	})
	rapid.Check(t, func(t *rapid.T) {
		end := rapid.SampledFrom([]string{"\n", "\r\n"}).Draw(t, "end")
		var b strings.Builder
		for range rapid.IntRange(0, 5).Draw(t, "events") {
			// Every event has data: without, the two differ by design.
			lines := append(rapid.SliceOfN(field, 0, 4).Draw(t, "fields"), "data: x")
			for _, l := range lines {
				b.WriteString(l + end)
			}
			b.WriteString(end)
		}
		got, err := all(NewReader(strings.NewReader(b.String()), 1<<20))
		if err != io.EOF {
			t.Fatal(err)
		}
		i, lastID := 0, ""
		for want, err := range sse.Read(strings.NewReader(b.String()), nil) {
			if err != nil || i == len(got) {
				t.Fatalf("%d events; go-sse has %+v, %v", len(got), want, err)
			}
			if got[i].HasID {
				lastID = got[i].ID
			}
			if g := (sse.Event{LastEventID: lastID, Type: got[i].Type, Data: string(got[i].Data)}); g != want {
				t.Fatalf("event %d: %+v, go-sse %+v", i, g, want)
			}
			i++
		}
		if i != len(got) {
			t.Fatalf("%d events, go-sse %d", len(got), i)
		}
	})
}

// chunks offers the input in pieces whose sizes repeat.
type chunks struct {
	b     []byte
	sizes []byte
	i     int
}

func (c *chunks) Read(p []byte) (int, error) {
	if len(c.b) == 0 {
		return 0, io.EOF
	}
	n := len(c.b)
	if len(c.sizes) > 0 {
		n = int(c.sizes[c.i%len(c.sizes)]) + 1
		c.i++
	}
	n = copy(p, c.b[:min(n, len(c.b))])
	c.b = c.b[n:]
	return n, nil
}

// FuzzReader: neither the sizes of the reads nor those of the buffer matter.
func FuzzReader(f *testing.F) {
	f.Add([]byte("\xef\xbb\xbfid: 1\r\ndata: a\ndata: b\n\n: c\nevent: x\ndata:\n\nretry: 5\n\n"), []byte{0})
	f.Add([]byte("data: "+strings.Repeat("x", 5000)+"\n\ndata: y\n\ndata"), []byte{200, 3})
	f.Add([]byte("\n\r\n\r\r\ndata\r\r\n\n"), []byte{})
	f.Fuzz(func(t *testing.T, in, sizes []byte) {
		in = bytes.Repeat(in, 1+2*(8<<10)/(len(in)+1)) // long enough to fill a buffer
		for _, limit := range []int{300, 1 << 20} {
			checkChunks(t, in, sizes, limit)
		}
	})
}

func checkChunks(t *testing.T, in, sizes []byte, limit int) {
	t.Helper()
	want, werr := all(NewReader(bytes.NewReader(in), limit))
	got, gerr := all(NewReader(&chunks{b: in, sizes: sizes}, limit))
	if d := cmp.Diff(want, got); d != "" || fmt.Sprint(werr) != fmt.Sprint(gerr) {
		t.Errorf("errors %v and %v; %s", werr, gerr, d)
	}
	plain := reference(in)
	if _, tooLarge := werr.(*TooLargeError); tooLarge {
		plain = plain[:len(want)]
	}
	if d := cmp.Diff(plain, want, cmpopts.EquateEmpty()); d != "" {
		t.Error(d)
	}
}

// reference reads a whole stream in the plainest way.
func reference(in []byte) (evs []Event) {
	lines := strings.Split(strings.TrimPrefix(string(in), "\xef\xbb\xbf"), "\n")
	var ev Event
	var data []string
	for _, line := range lines[:len(lines)-1] {
		line = strings.TrimSuffix(line, "\r")
		name, value, _ := strings.Cut(line, ":")
		value = strings.TrimPrefix(value, " ")
		switch {
		case line == "":
			if data != nil || ev.HasID || ev.HasRetry {
				ev.Data = append([]byte{}, strings.Join(data, "\n")...)
				evs = append(evs, ev)
			}
			ev, data = Event{}, nil
		case name == "data":
			data = append(data, value)
		case name == "event":
			ev.Type = value
		case name == "id" && !strings.Contains(value, "\x00"):
			ev.ID, ev.HasID = value, true
		case name == "retry":
			if d, ok := parseMilliseconds([]byte(value)); ok {
				ev.Retry, ev.HasRetry = d, true
			}
		}
	}
	return evs
}

// The memory of large events is accounted for: before the buffer grows, and when it is let go
// of. Small events do not count.
func TestReaderAccount(t *testing.T) {
	held, most, refuse := 0, 0, errors.New("no room")
	account := func(r *Reader, limit int) *Reader {
		held, most = 0, 0
		r.Account(func(by int) error {
			if held+by > limit {
				return refuse
			}
			held += by
			most = max(most, held)
			return nil
		})
		return r
	}
	event := func(n int) string { return "data: " + strings.Repeat("x", n) + "\n\n" }
	r := account(NewReader(strings.NewReader(event(500)+event(100_000)+event(10)), 1<<20), 1<<20)
	if _, err := r.Next(); err != nil || held != 0 {
		t.Errorf("a small event: %d held, %v", held, err)
	}
	if ev, err := r.Next(); err != nil || held < len(ev.Data) {
		t.Errorf("a large event of %d bytes: %d held, %v", len(ev.Data), held, err)
	}
	if _, err := r.Next(); err != nil {
		t.Error(err)
	}
	if _, err := r.Next(); err != io.EOF || held != 0 {
		t.Errorf("at the end %d are held, %v", held, err)
	}
	if most > 300_000 {
		t.Errorf("%d were held for an event of 100000", most)
	}
	r = account(NewReader(strings.NewReader(event(100_000)), 1<<20), 50_000)
	if _, err := r.Next(); err != refuse || held != 0 {
		t.Errorf("without room: %v, %d held", err, held)
	}
	r = account(NewReader(strings.NewReader(event(100_000)), 100_010), 1<<20)
	if _, err := r.Next(); err != nil || most > 100_010 {
		t.Errorf("an event of the largest size: %v, %d held", err, most)
	}
	if _, err := r.Next(); err != io.EOF || held != 0 {
		t.Errorf("at the end: %v, %d held", err, held)
	}
}
