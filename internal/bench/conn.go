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
)

// dialTimeout and answerTimeout end a benchmark that hangs.
const (
	dialTimeout   = 5 * time.Second
	answerTimeout = 10 * time.Second
)

// worker does one request after the other on a connection of its own.
type worker interface {
	// do sends the request and reads the answer, which is valid until the next
	// do.
	do() ([]byte, error)
	Close() error
}

// httpConn is an HTTP/1.1 client for one prepared request. It knows just enough
// of the protocol to read what Go's server writes, so that the client costs as
// little as it can.
type httpConn struct {
	net.Conn
	request []byte
	in      *bufio.Reader
	body    []byte
}

func dialHTTP(addr string, request []byte) (worker, error) {
	conn, err := net.DialTimeout("tcp", addr, dialTimeout)
	if err != nil {
		return nil, err
	}
	return newHTTPConn(conn, request), nil
}

func newHTTPConn(conn net.Conn, request []byte) *httpConn {
	return &httpConn{Conn: conn, request: request, in: bufio.NewReaderSize(conn, 16<<10)}
}

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

// redisConn does GETs over a bare connection.
type redisConn struct {
	net.Conn
	request []byte
	in      *bufio.Reader
	body    []byte
}

func dialRedis(addr string) (worker, error) {
	conn, err := net.DialTimeout("tcp", addr, dialTimeout)
	if err != nil {
		return nil, err
	}
	request := fmt.Appendf(nil, "*2\r\n$3\r\nGET\r\n$%d\r\n%s\r\n", len(recordKey), recordKey)
	return &redisConn{Conn: conn, request: request, in: bufio.NewReaderSize(conn, 16<<10)}, nil
}

func (c *redisConn) do() ([]byte, error) {
	if err := c.SetDeadline(time.Now().Add(answerTimeout)); err != nil {
		return nil, err
	}
	if _, err := c.Write(c.request); err != nil {
		return nil, err
	}
	line, err := c.in.ReadSlice('\n')
	if err != nil {
		return nil, err
	}
	n, err := strconv.Atoi(string(bytes.Trim(line, "$\r\n")))
	if err != nil || n < 0 {
		return nil, fmt.Errorf("redis answered %q", line)
	}
	if cap(c.body) < n+2 {
		c.body = make([]byte, n+2)
	}
	c.body = c.body[:n+2]
	if _, err := io.ReadFull(c.in, c.body); err != nil {
		return nil, err
	}
	return c.body[:n], nil
}
