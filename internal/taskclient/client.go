// Package taskclient is a small MCP client of protocol version 2026-07-28 with
// the tasks extension, on nothing but net/http. It is what the demonstration
// shows and what the end-to-end tests measure the gateway with, so it has no
// opinions: it sends what it is told to, hands out every message as it was on
// the wire, and takes nothing for granted about the answer.
package taskclient

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime"
	"net/http"
	"sync/atomic"

	"taskgate/internal/eventstream"
	"taskgate/internal/mcp"
)

// maxMessage is the largest answer that is read.
const maxMessage = 64 << 20

// Client talks to one endpoint. It is safe for concurrent use if Trace is.
type Client struct {
	// URL is the endpoint.
	URL string
	// HTTP does the requests; nil is http.DefaultClient.
	HTTP *http.Client
	// Tasks declares the tasks extension with every request, Partials that partial
	// results are taken.
	Tasks    bool
	Partials bool
	// Trace sees every message, if not nil.
	Trace func(Message)

	lastID atomic.Int64
}

// Message is one JSON-RPC message as it was on the wire.
type Message struct {
	Sent   bool            // by the client
	Status int             // the HTTP status it came with, 0 if sent
	Header http.Header     // of the request or response it was in
	Body   json.RawMessage // the message
}

// envelope is a request.
type envelope struct {
	JSONRPC string         `json:"jsonrpc"`
	ID      int64          `json:"id"`
	Method  string         `json:"method"`
	Params  map[string]any `json:"params"`
}

// Error is a JSON-RPC error that the server answered.
type Error struct {
	Status  int             `json:"-"` // the HTTP status
	Code    int64           `json:"code"`
	Message string          `json:"message"`
	Data    json.RawMessage `json:"data"`
}

// Error gives the code and the message.
func (e *Error) Error() string {
	return fmt.Sprintf("error %d: %s (HTTP %d)", e.Code, e.Message, e.Status)
}

// ErrNoAnswer is a response that ended without an answer to the request.
var ErrNoAnswer = errors.New("the response ended without an answer")

// Do sends one request and returns its result. Where the server answers with an
// error, that is an *[Error]. Members of params named _meta are kept beside
// those that the protocol needs.
func (c *Client) Do(ctx context.Context, method string, params map[string]any) (json.RawMessage, error) {
	req, err := c.newRequest(ctx, method, params)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", method, err)
	}
	resp, err := c.client().Do(req)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", method, err)
	}
	defer resp.Body.Close()
	result, err := c.answer(resp)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", method, err)
	}
	return result, nil
}

func (c *Client) client() *http.Client {
	if c.HTTP != nil {
		return c.HTTP
	}
	return http.DefaultClient
}

// newRequest is the HTTP request for one JSON-RPC request: the body carries
// everything, and the headers mirror what proxies may want to know of it.
func (c *Client) newRequest(ctx context.Context, method string, params map[string]any) (*http.Request, error) {
	params = maps.Clone(params)
	if params == nil {
		params = map[string]any{}
	}
	params["_meta"] = c.meta(params["_meta"])
	body, err := json.Marshal(envelope{"2.0", c.lastID.Add(1), method, params})
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.URL, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", mcp.TypeJSON)
	req.Header.Set("Accept", mcp.TypeAccept)
	req.Header.Set(mcp.HeaderProtocolVersion, mcp.Version20260728)
	req.Header.Set(mcp.HeaderMethod, method)
	if name, ok := params[mcp.NameParam(method)].(string); ok {
		req.Header.Set(mcp.HeaderName, name)
	}
	c.trace(Message{Sent: true, Header: req.Header, Body: body})
	return req, nil
}

// meta is what every request of this version says about itself.
func (c *Client) meta(more any) map[string]any {
	capabilities, extensions := map[string]any{}, map[string]any{}
	if c.Tasks {
		extensions[mcp.ExtensionTasks] = map[string]any{}
	}
	if c.Partials {
		extensions[mcp.ExtensionPartials] = map[string]any{}
	}
	if len(extensions) > 0 {
		capabilities["extensions"] = extensions
	}
	meta := map[string]any{
		mcp.MetaProtocolVersion:    mcp.Version20260728,
		mcp.MetaClientCapabilities: capabilities,
		mcp.MetaClientInfo:         map[string]any{"name": "taskclient", "version": "1"},
	}
	if more, ok := more.(map[string]any); ok {
		maps.Copy(meta, more)
	}
	return meta
}

func (c *Client) trace(m Message) {
	if c.Trace != nil {
		c.Trace(m)
	}
}

// answer reads the response, which is one JSON message or a stream of events
// that ends with the answer.
func (c *Client) answer(resp *http.Response) (json.RawMessage, error) {
	media, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if err != nil {
		return nil, fmt.Errorf("HTTP %d: content type: %w", resp.StatusCode, err)
	}
	switch media {
	case mcp.TypeJSON:
		body, err := io.ReadAll(io.LimitReader(resp.Body, maxMessage))
		if err != nil {
			return nil, err
		}
		result, _, err := c.message(resp, body)
		return result, err
	case mcp.TypeSSE:
		return c.events(resp)
	default:
		return nil, fmt.Errorf("HTTP %d with content type %s", resp.StatusCode, media)
	}
}

// events reads notifications until the answer comes.
func (c *Client) events(resp *http.Response) (json.RawMessage, error) {
	reader := eventstream.NewReader(resp.Body, maxMessage)
	for {
		event, err := reader.Next()
		if errors.Is(err, io.EOF) {
			return nil, ErrNoAnswer
		}
		if err != nil {
			return nil, err
		}
		if result, final, err := c.message(resp, bytes.Clone(event.Data)); err != nil || final {
			return result, err
		}
	}
}

// message reads one JSON-RPC message; final says that it is the answer.
func (c *Client) message(resp *http.Response, body []byte) (result json.RawMessage, final bool, err error) {
	var m struct {
		Method string
		Result json.RawMessage
		Error  *Error
	}
	if err := json.Unmarshal(body, &m); err != nil {
		return nil, false, fmt.Errorf("HTTP %d: %w in %.200q", resp.StatusCode, err, body)
	}
	c.trace(Message{Status: resp.StatusCode, Header: resp.Header, Body: body})
	switch {
	case m.Method != "":
		return nil, false, nil
	case m.Error != nil:
		m.Error.Status = resp.StatusCode
		return nil, true, m.Error
	case m.Result == nil || resp.StatusCode != http.StatusOK:
		return nil, true, fmt.Errorf("HTTP %d: neither result nor error in %.200q", resp.StatusCode, body)
	}
	return m.Result, true, nil
}
