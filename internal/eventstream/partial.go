package eventstream

import (
	"bytes"
	"math"
	"strconv"
	"time"
)

// partial is an event whose blank line has yet to come. Its data is gathered in the buffer of the
// lines: the value of a data line only ever moves left, over the field names before it, so that
// even a large event is held once.
type partial struct {
	ev       Event
	dirty    bool // it has a known field
	hasData  bool
	from, to int // the data so far, relative to the event's first byte
}

// complete reports whether a blank line would make this an event for the caller.
func (p *partial) complete() bool { return p.hasData || p.ev.HasID || p.ev.HasRetry }

// event returns the finished event; buf begins with its first byte.
func (p *partial) event(buf []byte) Event {
	p.ev.Data = buf[p.from:p.to:p.to]
	return p.ev
}

// field applies the line buf[from:to], which has text, after HTML 9.2.6. A line without a colon is
// a field with an empty value; unknown fields and comments (whose name is empty) are ignored.
func (p *partial) field(buf []byte, from, to int) {
	line := buf[from:to]
	name, value, _ := bytes.Cut(line, []byte{':'})
	value = bytes.TrimPrefix(value, []byte{' '})
	switch string(name) {
	case "data":
		p.data(buf, to-len(value), to)
	case "event":
		p.ev.Type = string(value)
	case "id":
		if bytes.IndexByte(value, 0) < 0 {
			p.ev.ID, p.ev.HasID = string(value), true
		}
	case "retry":
		if d, ok := milliseconds(value); ok {
			p.ev.Retry, p.ev.HasRetry = d, true
		}
	default:
		return
	}
	p.dirty = true
}

// data adds the line buf[from:to] to the data.
func (p *partial) data(buf []byte, from, to int) {
	if !p.hasData {
		p.hasData, p.from, p.to = true, from, to
		return
	}
	buf[p.to] = '\n'
	p.to += 1 + copy(buf[p.to+1:], buf[from:to])
}

// milliseconds reads a retry value: ASCII digits only. A value beyond a Duration counts as the
// longest Duration.
func milliseconds(b []byte) (time.Duration, bool) {
	if len(b) == 0 {
		return 0, false
	}
	for _, c := range b {
		if c < '0' || c > '9' {
			return 0, false
		}
	}
	n, err := strconv.ParseInt(string(b), 10, 64)
	if err != nil || n > math.MaxInt64/int64(time.Millisecond) {
		return math.MaxInt64, true
	}
	return time.Duration(n) * time.Millisecond, true
}
