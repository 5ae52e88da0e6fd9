package eventstream

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"taskgate/internal/work"
)

// DefaultWriteTimeout is how long a Chunk may take if the response was not paced before.
const DefaultWriteTimeout = 10 * time.Second

// ErrClosed is the error of a write to a closed Writer.
var ErrClosed = errors.New("event stream closed")

// Writer writes server-sent events as the response to one request. It is safe for concurrent use; events
// never interleave. The first write that fails is the last: every later one returns its error.
//
// A handler must call Close before it returns, since keep-alive writes to the response on a timer.
type Writer struct {
	keepAlive time.Duration
	to        *Paced
	direct    Direct // nil for a response that takes events

	turn   work.Turn
	corked bool        // events wait for the ones after them
	held   bool        // some do
	idle   *time.Timer // nil without keep-alive
	closed bool
	err    error
}

// NewWriter makes w an event stream. It sets the content type and the headers that keep proxies from
// buffering or changing the stream. The status and further headers can be set until the first write. A comment goes
// out after a silence of keepAlive; 0 means never.
func NewWriter(w http.ResponseWriter, keepAlive time.Duration) *Writer {
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-cache, no-transform")
	h.Set("X-Accel-Buffering", "no")
	ew := &Writer{keepAlive: keepAlive, to: Pace(w, DefaultWriteTimeout), turn: work.NewTurn()}
	ew.direct, _ = ew.to.ResponseWriter.(Direct)
	if keepAlive > 0 {
		ew.turn.Take() // the timer must see a complete Writer
		// A write stops the timer and starts it anew when it is done, so that it fires only after silence.
		ew.idle = time.AfterFunc(keepAlive, func() { _ = ew.Comment("k") }) // the next Send returns its error
		ew.turn.Give()
	}
	return ew
}

// Direct is a response that takes whole messages in place of events. It has no use for ids and comments.
type Direct interface {
	Message(pieces ...[]byte) error
}

// Send writes one event; its data is that of all pieces together. An empty id leaves the id line out: a
// client that has seen an id tries to resume, and MCP 2026-07-28 has no resumption. The type is written although it
// is the default: some clients need it (vercel/ai #16002). Data may have several lines; the peer gets \r\n and \r as
// \n.
func (w *Writer) Send(id string, data ...[]byte) error {
	if w.direct != nil {
		return w.write("", func() error { return w.direct.Message(data...) })
	}
	return w.write(id, func() error { return writeData(w.to, data) })
}

// writeData writes the data lines of an event, and its end. The data, which may be large, is written
// uncopied.
func writeData(to io.Writer, data [][]byte) error {
	_, err := io.WriteString(to, "event: message\ndata: ")
	afterCR := false
	for _, piece := range data {
		for len(piece) > 0 && err == nil {
			if afterCR && piece[0] == '\n' {
				piece = piece[1:] // the line has ended already
			}
			afterCR = false
			end := lineEnd(piece)
			if end < 0 {
				_, err = to.Write(piece)
				break
			}
			if _, err = to.Write(piece[:end]); err == nil {
				_, err = io.WriteString(to, "\ndata: ")
			}
			afterCR = piece[end] == '\r'
			piece = piece[end+1:]
		}
	}
	if err == nil {
		_, err = io.WriteString(to, "\n\n")
	}
	return err
}

// lineEnd is the index of the first byte of a line end, or -1.
func lineEnd(b []byte) int {
	end := bytes.IndexByte(b, '\n')
	if end >= 0 {
		b = b[:end]
	}
	if cr := bytes.IndexByte(b, '\r'); cr >= 0 {
		return cr
	}
	return end
}

// Prime writes an event with an id and empty data, from which a client can resume (SEP-1699, MCP 2025-11-25). It
// leaves retry out: clients wait for a second by themselves, and the Java SDK ends a stream with such a line (java-sdk
// #1047).
func (w *Writer) Prime(id string) error { return w.writeText(id, "data: \n\n") }

// Comment writes a comment of one line, which clients ignore. A blank line behind it would be an event to clients with
// httpx-sse once they have seen an id, and the Python SDK before 1.23 fails on its empty data (python-sdk #1672).
func (w *Writer) Comment(line string) error { return w.writeText("", ": "+line+"\n") }

// SendNamed writes an event that has a name, for readers that speak no MCP. Its data is of one line.
func (w *Writer) SendNamed(name, data string) error {
	return w.writeText("", "event: "+name+"\ndata: "+data+"\n\n")
}

// Close stops the keep-alive. It waits for a write under way. The connection stays open: the server closes it
// when the handler returns. Close may be called more than once.
func (w *Writer) Close() {
	w.turn.Take()
	defer w.turn.Give()
	if w.closed {
		return
	}
	w.closed = true
	w.stop()
	_ = w.to.Begin() // for what the server writes when the handler returns
}

// Err returns the first error of a write; nil if there was none. Close leaves it unchanged.
func (w *Writer) Err() error {
	w.turn.Take()
	defer w.turn.Give()
	return w.err
}

// Blocked returns how long the peer has left the present write waiting: a Chunk, or the rest. It is 0 between
// writes.
func (w *Writer) Blocked() time.Duration { return w.to.Blocked() }

// Break fails the write under way, and all later ones, because another connection has the stream.
func (w *Writer) Break() { w.to.Break() }

func (w *Writer) writeText(id, text string) error {
	if w.direct != nil {
		return nil
	}
	return w.write(id, func() error {
		_, err := io.WriteString(w.to, text)
		return err
	})
}

// write writes one event; rest writes the part after the id.
func (w *Writer) write(id string, rest func() error) error {
	if strings.ContainsAny(id, "\x00\r\n") {
		return fmt.Errorf("event stream: %q cannot be the id of an event", id)
	}
	w.turn.Take()
	defer w.turn.Give()
	switch {
	case w.closed:
		return ErrClosed
	case w.err != nil:
		return w.err
	}
	w.stop() // the timer would only wait behind a peer that reads slowly
	if w.err = w.deliver(id, rest); w.err == nil && w.idle != nil {
		w.idle.Reset(w.keepAlive)
	}
	return w.err
}

// deliver writes an event under deadlines of its own.
func (w *Writer) deliver(id string, rest func() error) error {
	defer w.to.begun.Store(0)
	if err := w.to.Begin(); err != nil {
		return err
	}
	if id != "" {
		if _, err := io.WriteString(w.to, "id: "+id+"\n"); err != nil {
			return err
		}
	}
	if err := rest(); err != nil {
		return err
	}
	if w.held = w.corked; w.held {
		return nil
	}
	return w.to.Flush()
}

// Cork(true) holds events back, as far as the buffers of the server reach, until Cork(false), so that several go out
// in one write. What is held when the handler returns goes out with the end of the response.
func (w *Writer) Cork(yes bool) {
	w.turn.Take()
	defer w.turn.Give()
	w.corked = yes
	if yes || !w.held || w.closed || w.err != nil {
		return
	}
	w.held = false
	defer w.to.begun.Store(0)
	if w.err = w.to.Begin(); w.err == nil {
		w.err = w.to.Flush()
	}
}

func (w *Writer) stop() {
	if w.idle != nil {
		w.idle.Stop()
	}
}
