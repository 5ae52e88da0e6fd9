package eventstream

import (
	"bufio"
	"bytes"
	"io"
	"math"
	"strconv"
	"time"

	"taskgate/internal/pool"
)

const (
	// smallBuffer is the size in bytes up to which the buffer for an event is left out of the account.
	smallBuffer = 1 << 10
	// idleBuffer is the size in bytes of the buffer in which the begin of the next event arrives.
	idleBuffer = 16
	// arrivedBuffer is the size in bytes of the buffer for what has arrived behind that.
	arrivedBuffer = 32 << 10
)

// spare has the readers of what has arrived. A reader that waits for the next event, or has ended, has none.
var spare = pool.New("readers of events", func() *bufio.Reader { return bufio.NewReaderSize(nil, arrivedBuffer) })

// Reader splits a byte stream into events. It is not safe for concurrent use.
//
// Lines end in LF or CRLF. The HTML standard allows a lone CR too, which is ignored here as a line end: MCP
// peers avoid it, and to wait for the byte that may follow it would hold back the last event. So a stream
// with lone CRs only has no event, but the one that KeepLast gives.
type Reader struct {
	src *bufio.Reader
	in  *bufio.Reader // reads from src; nil while nothing has arrived
	max int
	// resize, if not nil, is told by how many bytes the buffer grows or has shrunk.
	resize func(by int) error
	grown  int // by how many bytes it is larger than smallBuffer

	buf   []byte // the data of the current event, and behind it the line that is being read
	size  int    // of the current event so far, as sent
	begun bool   // the place for a byte order mark has been passed
	err   error  // ends the stream

	keepLast bool

	ev      Event // the current one
	dirty   bool  // it has a known field
	hasData bool
}

// NewReader reads events from r, each of at most max bytes as sent.
//
// The reader gives its buffer back while it waits for the next event, so that thousands of idle streams stay
// cheap.
func NewReader(r io.Reader, max int) *Reader {
	return &Reader{src: bufio.NewReaderSize(r, idleBuffer), max: max}
}

// Account has resize hear of the memory for large events: of the bytes by which the buffer is about
// to grow beyond its first KiB, and, as a negative number, of freed bytes. The data of the last
// event stays in the buffer until the next one is read, or the end. Next returns an error of
// resize. Account is called before the first Next.
func (r *Reader) Account(resize func(by int) error) { r.resize = resize }

// account notes that the buffer is to have this size, or has it.
func (r *Reader) account(size int) error {
	by := max(0, size-smallBuffer) - r.grown
	if r.resize == nil || by == 0 {
		return nil
	}
	if err := r.resize(by); err != nil {
		return err
	}
	r.grown += by
	return nil
}

// Next returns the next event. Events without data are returned only if they have an id or a retry
// field (the priming events of SEP-1699); the HTML standard drops them, but keeps their effect.
//
// At the end of the stream it returns io.EOF, or io.ErrUnexpectedEOF if the stream ends inside an
// event, which is dropped as the HTML standard asks. An event above the limit is a
// *[TooLargeError], and ends the stream. Other errors are those of the source. The cost is linear
// in the input, whatever the size of the reads.
func (r *Reader) Next() (Event, error) {
	r.restart()
	r.freeBuffer()
	for r.err == nil {
		from := len(r.buf)
		if r.err = r.readLine(); r.err != nil {
			if r.err == io.EOF && (r.dirty || len(r.buf) > from) {
				if r.takeCut(from) {
					return r.ev, nil
				}
				r.err = io.ErrUnexpectedEOF
			}
			break
		}
		switch line := r.trimLine(from); {
		case len(line) > 0:
			r.takeField(line, from)
		case r.hasData || r.ev.HasID || r.ev.HasRetry:
			r.ev.Data = r.buf[:from:from]
			if r.in.Buffered() == 0 {
				r.Release()
			}
			return r.ev, nil
		default:
			r.restart() // it had at most a type, which goes with the empty event
		}
		if !r.dirty {
			r.size = 0 // comments are no part of an event
		}
	}
	r.freeBuffer()
	r.Release()
	return Event{}, r.err
}

// Release gives back the buffer of what has arrived. Whoever reads calls it after the last Next, unless that returned
// an error; data that has arrived behind the last event is lost.
func (r *Reader) Release() {
	if r.in != nil {
		r.in.Reset(nil)
		spare.Put(r.in)
		r.in = nil
	}
}

// KeepLast has Next hand out an event that has data and lacks only the blank line, where the stream has come to its
// end. It is called before the first Next.
func (r *Reader) KeepLast() { r.keepLast = true }

// takeCut completes the event at the end of the stream, whose last line begins at from, and reports whether it counts.
func (r *Reader) takeCut(from int) bool {
	if !r.keepLast {
		return false
	}
	if len(r.buf) > from {
		r.buf = append(r.buf, '\n')
		if line := r.trimLine(from); len(line) > 0 {
			r.takeField(line, from)
		} else {
			r.buf = r.buf[:from]
		}
	}
	r.ev.Data, r.ev.Cut = r.buf[:len(r.buf):len(r.buf)], true
	return r.hasData
}

// restart begins a new event.
func (r *Reader) restart() {
	r.buf, r.size, r.ev, r.dirty, r.hasData = r.buf[:0], 0, Event{}, false, false
}

func (r *Reader) freeBuffer() {
	r.buf = nil
	_ = r.account(0)
}

// readLine appends the next line to buf, with its end.
func (r *Reader) readLine() error {
	if r.in != nil && r.size == 0 && r.in.Buffered() == 0 { // after a comment
		r.Release()
	}
	if r.in == nil {
		if _, err := r.src.Peek(1); err != nil {
			return err
		}
		r.in = spare.Get()
		r.in.Reset(r.src)
	}
	for {
		if _, err := r.in.Peek(1); err != nil {
			return err
		}
		part, _ := r.in.Peek(r.in.Buffered()) // it is there
		end := bytes.IndexByte(part, '\n')
		if end >= 0 {
			part = part[:end+1]
		}
		if r.size += len(part); r.size > r.max {
			return &TooLargeError{r.max}
		}
		if err := r.appendPart(part); err != nil {
			return err
		}
		if _, _ = r.in.Discard(len(part)); end >= 0 {
			return nil
		}
	}
}

// appendPart appends a part of a line to buf, which doubles if it is full.
func (r *Reader) appendPart(part []byte) error {
	if size := len(r.buf) + len(part); size > cap(r.buf) {
		size = max(size, min(2*cap(r.buf), r.max+smallBuffer))
		if err := r.account(size); err != nil {
			return err
		}
		grown := make([]byte, size) // with the copy behind it, only the rest is cleared
		copy(grown, r.buf)
		r.buf = grown[:len(r.buf)]
	}
	r.buf = append(r.buf, part...)
	return nil
}

// trimLine returns the line that begins at from, without its end and, on the first line, without a byte order
// mark.
func (r *Reader) trimLine(from int) []byte {
	line := bytes.TrimSuffix(r.buf[from:len(r.buf)-1], []byte{'\r'})
	if !r.begun {
		r.begun = true
		line = bytes.TrimPrefix(line, []byte("\xef\xbb\xbf"))
	}
	return line
}

// takeField applies a line that has text, after HTML 9.2.6, and leaves of it only data in buf. A line without a
// colon is a field with an empty value; unknown fields and comments (whose name is empty) are ignored.
func (r *Reader) takeField(line []byte, from int) {
	name, value, _ := bytes.Cut(line, []byte{':'})
	value = bytes.TrimPrefix(value, []byte{' '})
	r.buf = r.buf[:from]
	switch string(name) {
	case "data": // the value moves to the left, over the name, so that a large event is held once
		if r.hasData {
			r.buf = append(r.buf, '\n')
		}
		r.buf, r.hasData = append(r.buf, value...), true
	case "event":
		r.ev.Type = string(value)
	case "id":
		if bytes.IndexByte(value, 0) < 0 {
			r.ev.ID, r.ev.HasID = string(value), true
		}
	case "retry":
		if d, ok := parseMilliseconds(value); ok {
			r.ev.Retry, r.ev.HasRetry = d, true
		}
	default:
		return
	}
	r.dirty = true
}

// parseMilliseconds reads a retry value: ASCII digits only. A value beyond a Duration counts as the
// longest Duration.
func parseMilliseconds(b []byte) (time.Duration, bool) {
	if len(b) == 0 || len(bytes.Trim(b, "0123456789")) > 0 {
		return 0, false
	}
	n, err := strconv.ParseInt(string(b), 10, 64)
	if err != nil || n > math.MaxInt64/int64(time.Millisecond) {
		return math.MaxInt64, true
	}
	return time.Duration(n) * time.Millisecond, true
}
