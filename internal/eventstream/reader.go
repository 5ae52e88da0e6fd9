package eventstream

import (
	"bytes"
	"errors"
	"io"
	"sync"
)

// startBuffer is the size in bytes of the first buffer for an event.
const startBuffer = 1 << 10

// spare has buffers of that size. A reader that waits for the next event has none.
var spare = sync.Pool{New: func() any { return new([startBuffer]byte) }}

// Reader splits a byte stream into events. It is not safe for concurrent use.
//
// Lines end in LF or CRLF. The HTML standard allows a lone CR too, which is ignored here as a line end: MCP
// peers avoid it, and to wait for the byte that may follow it would hold back the last event. So a stream
// with lone CRs only has no event.
type Reader struct {
	r   io.Reader
	max int
	// resize, if not nil, is told by how many bytes the buffer grows or has shrunk.
	resize func(by int) error
	grown  int // by how many bytes it is larger than the first one

	// buf[start:pos] is the parsed part of the current event, buf[pos:scan] holds no line end, and
	// the rest is still to be searched.
	buf              []byte
	start, pos, scan int
	first            [1]byte // read to find out that there is something to read
	err              error   // ends the stream once the buffer is used up
	fatal            error   // ends it at once

	begun bool    // the place for a byte order mark has been passed
	cur   partial // the current event
}

// NewReader reads events from r, each of at most max bytes as sent.
//
// The reader gives its buffer back while it waits for the next event, so that thousands of idle streams stay
// cheap.
func NewReader(r io.Reader, max int) *Reader { return &Reader{r: r, max: max} }

// Account has resize hear of the memory for large events: of the bytes by which the buffer is about
// to grow beyond its first KiB, and, as a negative number, of freed bytes. The data of the last
// event stays in the buffer until the next one is read, or the end. Next returns an error of
// resize. Account is called before the first Next.
func (r *Reader) Account(resize func(by int) error) { r.resize = resize }

// account notes that the buffer is to have this size, or has it.
func (r *Reader) account(size int) error {
	by := max(0, size-startBuffer) - r.grown
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
func (r *Reader) Next() (ev Event, err error) {
	if err = r.complete(); err == nil {
		ev = r.cur.event(r.buf[r.start:])
	}
	return ev, err
}

// complete reads until the current event is complete.
func (r *Reader) complete() error {
	r.restart()
	for {
		from, to, err := r.line()
		if err != nil {
			return err
		}
		switch {
		case to > from:
			r.cur.field(r.buf[r.start:], from-r.start, to-r.start)
		case r.cur.complete():
			return nil
		default:
			r.restart() // it had at most a type, which goes with the empty event
		}
		if !r.cur.dirty {
			r.start = r.pos // comments are no part of an event
		}
	}
}

// restart begins a new event after the last line read.
func (r *Reader) restart() {
	r.start, r.cur = r.pos, partial{}
}

// line finds the next line and returns its position, without its end.
func (r *Reader) line() (from, to int, err error) {
	for r.fatal == nil {
		i := bytes.IndexByte(r.buf[r.scan:], '\n')
		if i >= 0 {
			from, to = r.pos, r.scan+i
			r.pos, r.scan = to+1, to+1
		} else {
			r.scan = len(r.buf)
		}
		if r.scan-r.start > r.max {
			r.fail(&TooLargeError{r.max})
		} else if i >= 0 {
			from, to = r.trim(from, to)
			return from, to, nil
		} else if err := r.fill(); err != nil {
			r.fail(r.end(err))
		}
	}
	return 0, 0, r.fatal
}

func (r *Reader) fail(err error) {
	r.fatal, r.buf = err, nil
	r.start, r.pos, r.scan = 0, 0, 0
	_ = r.account(0)
}

// end translates the end of the source for the caller.
func (r *Reader) end(err error) error {
	if err == io.EOF && (r.cur.dirty || r.pos < len(r.buf)) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// trim takes off a carriage return and, on the first line, a byte order mark.
func (r *Reader) trim(from, to int) (int, int) {
	if !r.begun {
		r.begun = true
		if bytes.HasPrefix(r.buf[from:to], []byte("\xef\xbb\xbf")) {
			from += 3
		}
	}
	if to > from && r.buf[to-1] == '\r' {
		to--
	}
	return from, to
}

var errNoProgress = errors.New("eventstream: source returns neither data nor an error")

// fill reads from the source once.
func (r *Reader) fill() error {
	if r.err != nil {
		return r.err
	}
	if r.start == len(r.buf) {
		return r.wait()
	}
	if err := r.makeRoom(); err != nil {
		return err
	}
	n, err := r.read(r.buf[len(r.buf):cap(r.buf)])
	r.buf = r.buf[:len(r.buf)+n]
	return err
}

// wait gives the buffer back, and reads the first byte of the next event.
func (r *Reader) wait() error {
	if cap(r.buf) == startBuffer {
		spare.Put((*[startBuffer]byte)(r.buf[:startBuffer]))
	}
	r.buf, r.start, r.pos, r.scan = nil, 0, 0, 0
	_ = r.account(0)
	if _, err := r.read(r.first[:]); err != nil {
		return err
	}
	r.buf = append(spare.Get().(*[startBuffer]byte)[:0], r.first[0])
	return nil
}

// read makes one read with a result: some bytes, or an error.
func (r *Reader) read(p []byte) (n int, err error) {
	for range 100 {
		n, r.err = r.r.Read(p)
		switch {
		case n > 0:
			return n, nil
		case r.err != nil:
			return 0, r.err
		}
	}
	return 0, errNoProgress
}

// makeRoom drops finished events and grows the buffer if the current event fills it. The buffer
// doubles, and bytes are moved only after as many were dropped, so that each byte is moved a
// constant number of times on average.
func (r *Reader) makeRoom() error {
	pending := r.buf[r.start:]
	size := max(cap(r.buf), startBuffer)
	switch {
	case r.start > 0 && len(pending) <= startBuffer/2:
		size = startBuffer // a larger event is done: give its buffer back
	case r.start < size/2 && len(r.buf) < cap(r.buf):
		return nil
	case len(pending) > size/2:
		size = max(size, min(2*size, r.max+startBuffer))
	}
	if err := r.account(size); err != nil {
		return err
	}
	buf := r.buf[:0]
	if size != cap(r.buf) {
		buf = make([]byte, 0, size)
	}
	r.buf = append(buf, pending...)
	r.pos -= r.start
	r.scan -= r.start
	r.start = 0
	return nil
}
