package sse

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"sync/atomic"
	"time"

	"taskgate/gateway/upstream/duplex"
	"taskgate/gateway/upstream/forward"
	"taskgate/gateway/upstream/streamable"
	"taskgate/gateway/upstream/transport"
	"taskgate/internal/eventstream"
	"taskgate/internal/work"
	"taskgate/shim"
)

// postGrace is how long a POST may still take after its caller has left. A POST that is cut off just when it
// is answered could make net/http close a connection that another request has by then.
const postGrace = time.Second

// conn is one connection of a server, and so one of its sessions.
type conn struct {
	t        *Transport
	first    *transport.Outgoing // brings the headers and the version of the message that the connection was opened for
	host     string              // the host name of the request, if it is not that of the URL
	endpoint *url.URL
	cookie   string    // as transport.Head.Cookie: those of the event stream
	body     io.Closer // that of the event stream; nil before it is open
	events   *eventstream.Reader
	life     context.Context
	end      context.CancelCauseFunc
	posts    work.Group // refuses new ones once the connection is over
}

// Send posts one message. A request counts as sent as soon as the server says something that belongs to it:
// servers of the Java SDK answer a POST after all of its messages.
func (c *conn) Send(ctx context.Context, m *transport.Outgoing, heard <-chan struct{}) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	done := make(chan error, 1)
	var out atomic.Bool // the POST has a connection to go out on
	if !c.posts.Enter() {
		return duplex.ErrOver
	}
	go func() {
		defer c.posts.Leave()
		done <- c.post(ctx, m, heard != nil, &out)
	}()
	var err error
	select {
	case err = <-done:
	case <-heard:
	case <-c.life.Done():
		err = errBroken
	case <-ctx.Done():
		if err = context.Cause(ctx); !out.Load() {
			<-done // it is cut off, and then says whether it went out
		}
	}
	select {
	case <-heard: // that came first: a server may end the stream right after its answer
		return nil
	default:
		return err
	}
}

// post posts one message. Before it goes out, it ends with the request and the connection: nobody would
// cancel a call that goes out later. Once it goes out, it outlives them by a moment.
func (c *conn) post(caller context.Context, m *transport.Outgoing, asks bool, out *atomic.Bool) error {
	named := caller
	if m.Own { // the connection's credential signs it in
		named = forward.Unheard(c.life)
	}
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(named))
	defer cancel(nil)
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { out.Store(true) }})
	late := time.AfterFunc(c.t.cfg.Patience, func() {
		// the server is too slow for a notification or a response
		cancel(&shim.UpstreamError{Kind: shim.KindTimeout, Message: fmt.Sprintf("the server did not take a message within %s", c.t.cfg.Patience)})
	})
	if asks { // the server may have much to do before it answers
		late.Stop()
	}
	defer late.Stop()
	soon := func() {
		if !out.Load() {
			cancel(errBroken)
			return
		}
		late.Reset(postGrace)
	}
	defer context.AfterFunc(caller, soon)()
	defer context.AfterFunc(c.life, soon)()
	worded := *m
	worded.Session, worded.Cookie = "", c.cookie // a connection is the session
	if m.Own {
		worded.Header, worded.Version = c.first.Header, c.first.Version
	}
	req, err := c.t.HTTP.NewRequest(ctx, http.MethodPost, &worded)
	if err != nil {
		return err
	}
	req.URL = c.endpoint
	resp, err := c.t.HTTP.Perform(req)
	switch {
	case err != nil && ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil:
		return err
	case resp.StatusCode/100 != 2:
		return c.t.HTTP.ReadStatus(resp, m)
	}
	streamable.Drain(resp.Body)
	return nil
}

// errBroken says that the event stream ended while a message was posted, which the server may have got.
var errBroken = errors.New("the event stream has ended")

// Receive returns the data of the next message event. If the stream has ended, the server may have stopped, and
// the next messages go out on new connections.
func (c *conn) Receive() ([]byte, error) {
	for {
		ev, err := c.events.Next()
		if err != nil {
			c.t.HTTP.CloseIdle()
			return nil, err
		}
		if ev.Type == "" || ev.Type == "message" {
			return bytes.Clone(ev.Data), nil
		}
	}
}

// Fate says why the event stream has ended.
func (c *conn) Fate(err error) *duplex.Exit {
	e := &duplex.Exit{Kind: shim.KindClosed, How: "broke", Err: err}
	var large *eventstream.TooLargeError
	switch {
	case errors.As(err, &large):
		e = &duplex.Exit{Kind: shim.KindTooLarge, How: fmt.Sprintf("had an event of more than %d bytes, and was closed", large.Limit)}
	case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
		e = &duplex.Exit{Kind: shim.KindClosed, How: "ended", Usual: true}
	}
	return e
}

// Stop closes the connection, which alone ends the session (protocol.md 5.2).
func (c *conn) Stop() { c.end(duplex.ErrOver) }

// Close waits for the end of the running POSTs.
func (c *conn) Close() {
	c.posts.Refuse()
	c.end(duplex.ErrOver)
	_ = c.posts.Wait(context.Background())
	if c.body != nil {
		c.body.Close()
	}
}
