package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"taskgate/internal/compare/peers"
)

// The versions that clients speak.
const (
	legacy = "2025-11-25"
	modern = "2026-07-28"
)

// client is one session of the Go SDK with a peer.
type client struct {
	*mcp.ClientSession
	wire *wireLog
}

// wireLog has the messages as they were on the wire. It is safe for concurrent use.
type wireLog struct {
	to   http.RoundTripper
	mu   sync.Mutex
	text bytes.Buffer
}

// Write implements io.Writer.
func (w *wireLog) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.Write(b)
}

// has reports whether some received message has this text.
func (w *wireLog) has(text string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for line := range strings.Lines(w.text.String()) {
		if !strings.HasPrefix(line, "write: ") && strings.Contains(line, text) {
			return true
		}
	}
	return false
}

// RoundTrip implements http.RoundTripper: it keeps what is received.
func (w *wireLog) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := w.to.RoundTrip(r)
	if err == nil {
		resp.Body = struct {
			io.Reader
			io.Closer
		}{io.TeeReader(resp.Body, w), resp.Body}
	}
	return resp, err
}

// connect begins a session of this version.
func (l *lab) connect(ctx context.Context, version string, options *mcp.ClientOptions) (*client, error) {
	return l.connectAs(ctx, version, options, false)
}

// connectAs begins a session of a client with these roots, which keeps what was on the wire if it is to.
func (l *lab) connectAs(ctx context.Context, version string, options *mcp.ClientOptions, keep bool, roots ...*mcp.Root) (*client, error) {
	c := &client{wire: &wireLog{to: &http.Transport{MaxIdleConnsPerHost: 64}}}
	h := &http.Client{Transport: c.wire.to}
	if keep {
		h.Transport = c.wire
	}
	var transport mcp.Transport
	switch {
	case l.Way == peers.ForClient && keep:
		transport = &mcp.LoggingTransport{Transport: child{l.command(ctx)}, Writer: c.wire}
	case l.Way == peers.ForClient:
		transport = child{l.command(ctx)}
	case l.SSE:
		transport = &mcp.SSEClientTransport{Endpoint: l.url(), HTTPClient: h}
	default:
		transport = &mcp.StreamableClientTransport{Endpoint: l.url(), HTTPClient: h}
	}
	sdk := mcp.NewClient(&mcp.Implementation{Name: "compare", Version: "1"}, options)
	sdk.AddRoots(roots...)
	var err error
	c.ClientSession, err = sdk.Connect(ctx, transport, &mcp.ClientSessionOptions{ProtocolVersion: version})
	return c, err
}

// child is a peer over stdio. The SDK's own transport for one refuses messages of more than 16 MiB.
type child struct{ *exec.Cmd }

// Connect implements mcp.Transport.
func (c child) Connect(ctx context.Context) (mcp.Connection, error) {
	in, err := c.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := c.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := c.Start(); err != nil {
		return nil, err
	}
	return (&mcp.IOTransport{Reader: out, Writer: childInput{in, c}, MaxLineLength: maxMessage}).Connect(ctx)
}

// childInput is the input of a child, which ends with it.
type childInput struct {
	io.WriteCloser
	child
}

// Close ends the child, which has five seconds for it.
func (c childInput) Close() error {
	err := c.WriteCloser.Close()
	kill := time.AfterFunc(5*time.Second, func() { _ = c.Process.Kill() })
	defer kill.Stop()
	_ = c.Wait()
	return err
}

// ready waits until the tools of the server are listed through the peer: some connect to it after they have begun to listen.
func (l *lab) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		err := l.listed(ctx)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			out := ""
			if l.gateway != nil {
				out = l.gateway.Output()
			}
			return fmt.Errorf("no tools through %s: %w: %s", l.Name, err, out)
		}
		pause(ctx, 200*time.Millisecond)
	}
}

var errNotListed = errors.New("the tools are not listed")

func (l *lab) listed(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	c, err := l.connect(ctx, legacy, nil)
	if err != nil {
		return err
	}
	defer c.Close()
	_, err = c.tool(ctx, "try_work")
	return err
}

// tool is the name that a tool has through the peer: some put the server's name before it.
func (c *client) tool(ctx context.Context, name string) (string, error) {
	for tool, err := range c.Tools(ctx, nil) {
		if err != nil {
			return "", err
		}
		if strings.HasSuffix(tool.Name, name) {
			return tool.Name, nil
		}
	}
	return "", fmt.Errorf("%w: %s", errNotListed, name)
}

// call calls a tool, and returns the text of its result.
func (c *client) call(ctx context.Context, name string, args any) (string, error) {
	name, err := c.tool(ctx, name)
	if err != nil {
		return "", err
	}
	r, err := c.CallTool(ctx, &mcp.CallToolParams{Name: name, Arguments: args})
	if err != nil {
		return "", err
	}
	text := textOf(r)
	if r.IsError {
		return "", fmt.Errorf("the result is an error: %s", oneLine(text))
	}
	return text, nil
}

func textOf(r *mcp.CallToolResult) string {
	var b strings.Builder
	for _, content := range r.Content {
		if t, ok := content.(*mcp.TextContent); ok {
			b.WriteString(t.Text)
		}
	}
	return b.String()
}
