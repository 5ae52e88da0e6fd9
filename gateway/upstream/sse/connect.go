package sse

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"taskgate/gateway/upstream/duplex"
	"taskgate/gateway/upstream/forward"
	"taskgate/gateway/upstream/streamable"
	"taskgate/gateway/upstream/transport"
	"taskgate/internal/eventstream"
	"taskgate/shim"
)

// errNoEndpoint says that an event stream is foreign to this transport.
var errNoEndpoint = errors.New("the first event is no endpoint")

// open connects to the server by a GET whose event stream names the endpoint.
func (t *Transport) open(ctx context.Context, first *transport.Outgoing, _ *sync.WaitGroup, _ <-chan struct{}) (duplex.Link, error) {
	c := &conn{t: t, first: &transport.Outgoing{Version: first.Version, Header: first.Header, Sender: transport.Nobody{}}}
	c.life, c.end = context.WithCancelCause(context.WithoutCancel(ctx))  // keeps the credential
	stop := context.AfterFunc(ctx, func() { c.end(context.Cause(ctx)) }) // until the stream is open
	patience := time.AfterFunc(t.cfg.Patience, func() {
		c.end(&duplex.Exit{Kind: shim.KindTimeout, How: fmt.Sprintf("did not begin within %s", t.cfg.Patience), Err: errNoEndpoint})
	})
	err := c.connect()
	late := !patience.Stop()
	if gone := !stop(); err == nil && (gone || late) {
		err = context.Cause(c.life)
	}
	if err == nil {
		return c, nil
	}
	if cause := context.Cause(c.life); cause != nil {
		err = cause
	}
	c.Close()
	if e, ok := errors.AsType[*duplex.Exit](err); ok && errors.Is(err, errNoEndpoint) && !t.cfg.Always {
		// The server may be one of another transport, so the next try need not wait.
		t.learn(false)
		err = &shim.UpstreamError{Kind: e.Kind, Message: what + " " + e.How, Err: e.Err, Unsent: true}
	}
	return nil, err
}

// connect asks for the event stream, and reads its first event.
func (c *conn) connect() error {
	ctx := c.life
	if !c.t.speaks.Load() { // a mere question: a refusal must not count against the client's token
		ctx = forward.Unheard(ctx)
	}
	req, err := c.t.HTTP.NewRequest(ctx, http.MethodGet, c.first)
	if err != nil {
		return err
	}
	if req.Host != req.URL.Host {
		c.host = req.Host
	}
	resp, err := c.t.HTTP.Perform(req)
	if err != nil {
		return err
	}
	if !streamable.IsStream(resp) {
		if resp.StatusCode/100 == 2 || isUnclearStatus(resp.StatusCode) {
			c.t.learn(false)
		}
		return c.t.HTTP.ReadNoStream(resp, c.first)
	}
	c.body, c.cookie = resp.Body, streamable.CookieOf(resp)
	c.events = eventstream.NewReader(resp.Body, int(c.t.cfg.MaxEvent))
	return c.greeted()
}

// greeted reads the endpoint event. Events before it are skipped: some servers begin with a ping, and EventSource,
// which the clients use, waits for the one that it wants.
func (c *conn) greeted() error {
	for {
		ev, err := c.events.Next()
		if err != nil {
			return &duplex.Exit{Kind: shim.KindProtocol, How: "ended before it named an endpoint", Err: errors.Join(errNoEndpoint, err)}
		}
		if ev.Type == "endpoint" {
			c.t.learn(true)
			return c.setEndpoint(strings.TrimSpace(string(ev.Data)))
		}
	}
}

// setEndpoint takes the address for messages. It must have the origin of the URL, since it gets
// the credentials. Of a configured address only the query is the server's.
func (c *conn) setEndpoint(named string) error {
	u, err := c.t.cfg.URL.Parse(named)
	if err != nil || named == "" {
		return &duplex.Exit{Kind: shim.KindProtocol, How: "names an endpoint that is no URL"}
	}
	if own := c.t.cfg.Endpoint; own != nil {
		c.endpoint = &url.URL{Scheme: own.Scheme, User: c.t.cfg.URL.User, Host: own.Host, Path: own.Path, RawPath: own.RawPath, RawQuery: u.RawQuery}
		return nil
	}
	if c.host != "" && strings.EqualFold(u.Host, c.host) {
		u.Scheme, u.Host = c.t.cfg.URL.Scheme, c.t.cfg.URL.Host // the host name of the request
	}
	if originOf(u) != originOf(c.t.cfg.URL) {
		return &duplex.Exit{
			Kind: shim.KindProtocol, How: "names an endpoint of another origin, to which nothing is sent",
			Err: fmt.Errorf("the endpoint is at %s, the server at %s", originOf(u), originOf(c.t.cfg.URL)),
		}
	}
	u.User, u.Fragment, u.RawFragment = c.t.cfg.URL.User, "", ""
	c.endpoint = u
	return nil
}

// originOf is the origin of a URL (RFC 6454 section 4).
func originOf(u *url.URL) string { return u.Scheme + "://" + strings.ToLower(streamable.HostPort(u)) }
