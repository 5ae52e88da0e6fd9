package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"time"

	"taskgate/internal/mcp"
)

// dialTimeout and answerTimeout end a benchmark that hangs.
const (
	dialTimeout   = 5 * time.Second
	answerTimeout = 10 * time.Second
)

// httpConn is an HTTP/1.1 client for one prepared request. It knows just enough
// of the protocol to read what Go's server writes, so that the client costs as
// little as it can.
type httpConn struct {
	net.Conn
	request []byte
	in      *bufio.Reader
	body    []byte
	session string // of the last answer that began one
}

func dialHTTP(addr string, request []byte) (*httpConn, error) {
	conn, err := net.DialTimeout("tcp", addr, dialTimeout)
	if err != nil {
		return nil, err
	}
	return newHTTPConn(conn, request), nil
}

func newHTTPConn(conn net.Conn, request []byte) *httpConn {
	return &httpConn{Conn: conn, request: request, in: bufio.NewReaderSize(conn, 16<<10)}
}

// do sends the request and reads the answer, which is valid until the next do.
func (c *httpConn) do() ([]byte, error) {
	if err := c.SetDeadline(time.Now().Add(answerTimeout)); err != nil {
		return nil, err
	}
	if _, err := c.Write(c.request); err != nil {
		return nil, err
	}
	status, err := c.line()
	if err != nil {
		return nil, err
	}
	ok := bytes.HasPrefix(status, []byte("HTTP/1.1 200 "))
	first := string(status)
	if err := c.read(); err != nil {
		return nil, err
	}
	if !ok {
		return nil, fmt.Errorf("%s: %s", first, c.body)
	}
	return c.body, nil
}

// line is the next line without its end.
func (c *httpConn) line() ([]byte, error) {
	line, err := c.in.ReadSlice('\n')
	return bytes.TrimRight(line, "\r\n"), err
}

// read takes the headers and the body.
func (c *httpConn) read() error {
	length, chunked := -1, false
	for {
		line, err := c.line()
		if err != nil {
			return err
		}
		if len(line) == 0 {
			break
		}
		name, value, _ := bytes.Cut(line, []byte(": "))
		switch string(name) {
		case "Content-Length":
			if length, err = strconv.Atoi(string(value)); err != nil {
				return err
			}
		case mcp.HeaderSession:
			c.session = string(value)
		case "Transfer-Encoding":
			chunked = true
		}
	}
	c.body = c.body[:0]
	switch {
	case chunked:
		return c.chunks()
	case length >= 0:
		return c.more(length)
	}
	return errors.New("an answer without a length")
}

// more adds n bytes to the body.
func (c *httpConn) more(n int) error {
	begin := len(c.body)
	c.body = append(c.body, make([]byte, n)...)
	_, err := io.ReadFull(c.in, c.body[begin:])
	return err
}

func (c *httpConn) chunks() error {
	for {
		line, err := c.line()
		if err != nil {
			return err
		}
		n, err := strconv.ParseInt(string(line), 16, 32)
		if err != nil {
			return err
		}
		if err := c.more(int(n)); err != nil {
			return err
		}
		if _, err := c.line(); err != nil || n == 0 {
			return err
		}
	}
}

// readRelease reads until there is a result of toolHold, and returns how old that is. What else
// the response has, and how it is framed, does not matter: the text ends with a quotation mark.
func (c *httpConn) readRelease() (time.Duration, error) {
	status, err := c.line()
	if err != nil {
		return 0, err
	}
	if !bytes.HasPrefix(status, []byte("HTTP/1.1 200 ")) {
		first := string(status)
		rest, _ := io.ReadAll(io.LimitReader(c.in, 500))
		return 0, fmt.Errorf("%s\n%s", first, rest)
	}
	for {
		text, err := c.in.ReadSlice('"')
		if err != nil {
			return 0, err
		}
		digits, ok := bytes.CutPrefix(text[:len(text)-1], []byte(heldText))
		if !ok {
			continue
		}
		now := time.Now()
		at, err := strconv.ParseInt(string(digits), 10, 64)
		return now.Sub(time.Unix(0, at)), err
	}
}
