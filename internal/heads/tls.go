package heads

import (
	"crypto/tls"
	"errors"
	"io"
	"slices"
	"time"
)

// tlsConn is a connection with TLS. net/http shakes hands by itself only with a *tls.Conn; of any other it asks for
// the state before it reads.
type tlsConn struct {
	*conn
	secure *tls.Conn
}

// handshakeTime bounds a handshake.
const handshakeTime = 10 * time.Second

// ConnectionState shakes hands, and returns the state. The connection is closed if that fails; a client that speaks
// HTTP in the clear is told so, as net/http does.
func (c *tlsConn) ConnectionState() tls.ConnectionState {
	_ = c.secure.SetDeadline(time.Now().Add(handshakeTime))
	if err := c.secure.Handshake(); err != nil {
		if plain, ok := errors.AsType[tls.RecordHeaderError](err); ok && plain.Conn != nil && isHTTP(plain.RecordHeader) {
			_, _ = io.WriteString(plain.Conn, "HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n")
		}
		_ = c.Close()
	}
	_ = c.secure.SetDeadline(time.Time{})
	return c.secure.ConnectionState()
}

// isHTTP reports whether the first bytes are those of a request in the clear.
func isHTTP(header [5]byte) bool {
	return slices.Contains([]string{"GET /", "HEAD ", "POST ", "PUT /", "OPTIO", "DELET"}, string(header[:]))
}
