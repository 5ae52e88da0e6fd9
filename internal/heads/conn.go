package heads

import (
	"container/list"
	"io"
	"net"
	"time"
)

// conn keeps heads until they are complete. net/http reads it from one goroutine at a time, and says in between how
// long a body is.
type conn struct {
	net.Conn
	guard *Guard

	in    []byte // what came and was not handed on yet
	whole int    // bytes of it that complete a head
	head  scanner
	sent  int   // bytes of an unfinished head that were handed on
	body  int64 // bytes that are still to come of a body
	// loose says that a chunked body came, whose end only net/http knows. It may have read the beginning of a head
	// with it, up to the size of its buffer.
	loose bool

	counted bool // as one with an unfinished head, unless it was ended for the others

	place *list.Element // among those of the guard, which guards it, with the bytes that it holds there
	held  int64
}

const (
	// firstBytes of a head are handed on at once. On a connection that was idle, net/http begins the time for a head
	// with them.
	firstBytes = 4
	// looseCost is what the fields cost that fit into the buffer of net/http (4 KiB).
	looseCost = 256 << 10
)

// Read hands on complete heads, and bodies.
func (c *conn) Read(p []byte) (int, error) {
	for {
		switch {
		case c.body > 0 && len(c.in) > 0:
			n := c.take(p, int(min(c.body, int64(len(c.in)))))
			c.body -= int64(n)
			return n, nil
		case c.body > 0:
			n, err := c.Conn.Read(p[:min(int64(len(p)), c.body)])
			c.body -= int64(n)
			return n, err
		case c.whole > 0:
			n := c.take(p, c.whole)
			c.whole -= n
			return n, nil
		case c.head.bytes < len(c.in)+c.sent: // some of it was not looked at
			if !c.scan() {
				return 0, io.EOF
			}
		case len(c.in) > 0 && c.sent < firstBytes:
			n := c.take(p, min(len(c.in), firstBytes-c.sent))
			c.sent += n
			return n, nil
		default:
			n, err := c.Conn.Read(p)
			if n == 0 {
				return 0, err
			}
			if whole := c.wholeHead(p[:n]); whole > 0 {
				c.in = append(c.in, p[whole:n]...) // the beginning of a body
				return whole, nil
			}
			c.in = append(c.in, p[:n]...) // the next Read returns the error
		}
	}
}

// wholeHead returns the length of the rest of a head if b has all of it, as that of most heads; 0 if not, or if the
// head is too large.
func (c *conn) wholeHead(b []byte) int {
	s := c.head
	if len(c.in) > 0 || c.counted || !s.scan(b) || c.guard.limits.exceeds(s) {
		return 0
	}
	whole := s.bytes - c.sent
	c.head, c.sent = scanner{}, 0
	return whole
}

// take hands on at most n bytes of what came.
func (c *conn) take(p []byte, n int) int {
	n = copy(p, c.in[:n])
	if c.in = c.in[n:]; len(c.in) == 0 {
		c.in = nil
	}
	return n
}

// scan looks at what came since the last look. It reports false if the head is too large: the client has its answer.
func (c *conn) scan() bool {
	complete := c.head.scan(c.in[c.head.bytes-c.sent:])
	if c.guard.limits.exceeds(c.head) {
		c.refuse()
		return false
	}
	cost := int64(cap(c.in))
	switch {
	case complete:
		cost = 0
		c.whole, c.head, c.sent = c.head.bytes-c.sent, scanner{}, 0
	case c.loose:
		cost += looseCost
	}
	if cost > 0 || c.counted {
		c.guard.hold(c, cost)
	}
	c.counted = cost > 0
	return true
}

// Close ends the connection.
func (c *conn) Close() error {
	c.guard.hold(c, 0)
	return c.Conn.Close()
}

// CloseWrite ends the answers, for net/http.
func (c *conn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

const tooLarge = "HTTP/1.1 431 Request Header Fields Too Large\r\nContent-Type: text/plain; charset=utf-8\r\n" +
	"Connection: close\r\n\r\n431 Request Header Fields Too Large"

// A refused client may go on to send: to close at once would reset the connection, maybe before it has the answer.
const (
	lingerTime  = 500 * time.Millisecond
	lingerBytes = 1 << 20
)

// refuse answers 431. No other answer is being written: net/http waits for this head.
func (c *conn) refuse() {
	c.guard.refused()
	c.guard.hold(c, 0)
	c.in = nil
	_ = c.Conn.SetDeadline(time.Now().Add(lingerTime))
	if _, err := io.WriteString(c.Conn, tooLarge); err == nil {
		_ = c.CloseWrite()
		_, _ = io.CopyN(io.Discard, c.Conn, lingerBytes)
	}
}

// scanner finds the end of a head.
type scanner struct {
	bytes  int // looked at
	fields int
	lines  int  // that are complete
	some   bool // the line has a byte besides its end
}

// scan goes on with b. It reports whether the head is complete; the rest is left then. A line ends with a line feed,
// as for net/http, and an empty one ends the head, also before a request line: net/http skips such lines or refuses
// them.
func (s *scanner) scan(b []byte) (complete bool) {
	for _, c := range b {
		s.bytes++
		switch c {
		case '\n':
			if !s.some {
				return true
			}
			s.some = false
			if s.lines++; s.lines > 1 {
				s.fields++
			}
		case '\r':
		default:
			s.some = true
		}
	}
	return false
}
