package streamable

import (
	"bufio"
	"bytes"
	"cmp"
	"compress/flate"
	"compress/gzip"
	"compress/zlib"
	"context"
	"io"
	"net/http"
	"net/http/httptrace"
	"slices"
	"strings"

	"taskgate/gateway/upstream/forward"
	"taskgate/gateway/upstream/transport"
	"taskgate/internal/mcp"
)

// performMessage makes the HTTP request of a message and performs it.
func (t *Transport) performMessage(ctx context.Context, method string, m *transport.Outgoing) (*http.Response, error) {
	req, err := t.NewRequest(ctx, method, m)
	if err != nil {
		return nil, err
	}
	resp, err := t.Perform(req)
	if err == nil {
		m.NoteHeard()
		resp.Body = heardBody{resp.Body, m.Sender}
	}
	return resp, err
}

// heardBody is the body of a response. It tells the sender of each piece, as a large message may come slowly, and before
// it waits for one.
type heardBody struct {
	io.ReadCloser
	sender transport.Sender
}

// Read reads a piece.
func (b heardBody) Read(p []byte) (int, error) {
	b.sender.NoteWaiting()
	n, err := b.ReadCloser.Read(p)
	if n > 0 {
		b.sender.NoteHeard()
	}
	return n, err
}

// NewRequest makes the HTTP request of a message. Headers of the configuration come first, so that those of
// the protocol win. The sender is told when the request has a connection. If the server closes an idle
// connection just then, net/http sends a message again that runs nothing: an empty key asks for that, and stays
// out of the request.
func (t *Transport) NewRequest(ctx context.Context, method string, m *transport.Outgoing) (*http.Request, error) {
	sender := m.Sender // so that the trace holds no body
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { sender.NoteReached() }})
	ctx = forward.Sending(ctx, cmp.Or(m.Method, method))
	var body io.Reader
	if m.Body != nil {
		body = bytes.NewReader(m.Body)
	}
	req, err := http.NewRequestWithContext(ctx, method, "", body)
	if err != nil {
		return nil, err
	}
	req.URL, req.Host = t.cfg.URL, t.cfg.URL.Host
	for name, values := range t.cfg.Header {
		req.Header[http.CanonicalHeaderKey(name)] = values
	}
	forward.Write(req)
	setHeader(req.Header, "Accept", mcp.TypeAccept)
	if method == http.MethodGet {
		setHeader(req.Header, "Accept", mcp.TypeSSE)
	}
	setHeader(req.Header, "Accept-Encoding", "identity") // without it a proxy may compress: openai/codex #37228
	if body != nil {
		setHeader(req.Header, "Content-Type", mcp.TypeJSON)
	}
	if m.Session != "" {
		setHeader(req.Header, mcp.HeaderSession, m.Session)
	}
	if m.Cookie != "" { // beside those of the configuration, or of the client
		setHeader(req.Header, "Cookie", strings.Join(append(slices.Clone(req.Header["Cookie"]), m.Cookie), "; "))
	}
	if mcp.LookupVersion(m.Version).HeaderVersion { // X7
		setHeader(req.Header, mcp.HeaderProtocolVersion, m.Version)
	}
	if m.Last != "" {
		setHeader(req.Header, mcp.HeaderLastEventID, m.Last)
	}
	for name, values := range m.Header {
		req.Header[name] = values
	}
	switch m.Method {
	case "", mcp.MethodInitialize, mcp.MethodDiscover: // they do no harm twice
		req.Header["Idempotency-Key"] = nil
	}
	return req, nil
}

func setHeader(h http.Header, canonical, value string) { h[canonical] = []string{value} }

// Perform performs a request. It follows one redirect within the origin, and none to another: a 307 would carry the body
// and the credentials there.
func (t *Transport) Perform(req *http.Request) (*http.Response, error) {
	resp, err := t.current().RoundTrip(req)
	if next := redirected(req, resp); next != nil {
		req = next
		resp, err = t.current().RoundTrip(req)
	}
	forward.Answered(req, resp)
	if next := forward.Renewed(req, resp); next != nil {
		Drain(resp.Body)
		resp, err = t.current().RoundTrip(next)
		forward.Answered(next, resp)
	}
	if err == nil {
		t.learnKeepAlive(resp.Header.Get("Keep-Alive"))
		if decode := codings[strings.ToLower(resp.Header.Get("Content-Encoding"))]; decode != nil {
			resp.Body, resp.ContentLength = &codedBody{ReadCloser: resp.Body, decode: decode}, -1
			resp.Header.Del("Content-Encoding")
		}
	}
	return resp, err
}

// codings are those that a client of HTTP must know, whether it has asked for them or not (ai-dial-core #1586).
var codings = map[string]func(io.Reader) (io.Reader, error){
	"gzip":    func(r io.Reader) (io.Reader, error) { return gzip.NewReader(r) },
	"x-gzip":  func(r io.Reader) (io.Reader, error) { return gzip.NewReader(r) },
	"deflate": inflate,
}

// inflate decodes the format zlib (RFC 9110 section 8.4.1.2), or the bare data in it, which some servers send.
func inflate(r io.Reader) (io.Reader, error) {
	in := bufio.NewReader(r)
	head, err := in.Peek(2)
	if err != nil {
		return nil, err
	}
	if head[0]&0x0f == 8 && (uint(head[0])<<8|uint(head[1]))%31 == 0 {
		return zlib.NewReader(in)
	}
	return flate.NewReader(in), nil
}

// codedBody decodes the body of a server or proxy that compresses it. Whoever reads it bounds what is decoded.
type codedBody struct {
	io.ReadCloser
	decode func(io.Reader) (io.Reader, error)
	text   io.Reader // nil until the first read, which waits for bytes
}

// Read reads a piece of the decoded body.
func (b *codedBody) Read(p []byte) (n int, err error) {
	if b.text == nil {
		if b.text, err = b.decode(b.ReadCloser); err != nil {
			return 0, err
		}
	}
	return b.text.Read(p)
}

// redirected returns the request again, for the path to which the server redirects it; nil if that is the same, or at
// another host. Clients follow so: Starlette adds a slash (python-sdk #732, fastmcp #1867), and others have moved. The
// server has begun nothing.
func redirected(req *http.Request, resp *http.Response) *http.Request {
	if resp == nil || resp.StatusCode != http.StatusTemporaryRedirect && resp.StatusCode != http.StatusPermanentRedirect {
		return nil
	}
	to, err := resp.Location()
	if err != nil || to.Host != req.URL.Host && to.Host != req.Host || to.EscapedPath() == req.URL.EscapedPath() {
		return nil
	}
	next := req.Clone(req.Context())
	next.URL.Path, next.URL.RawPath = to.Path, to.RawPath // the scheme and the host stay as configured
	if to.RawQuery != "" {
		next.URL.RawQuery = to.RawQuery
	}
	if req.GetBody != nil {
		if next.Body, err = req.GetBody(); err != nil {
			return nil
		}
	}
	Drain(resp.Body)
	return next
}
