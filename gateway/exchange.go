package gateway

import (
	"context"
	"encoding/json"
	"net/http"
	"strconv"
	"sync"
	"time"

	"taskgate/internal/eventstream"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
)

// writeTimeout is client_timeout where a response did not come by Handler.
const writeTimeout = 30 * time.Second

// exchange is the answer to one client request. It is JSON until something has to
// go out before the result (a notification, or keep-alive after silence), and an
// event stream from then on (design.md 0.21). Once the stream has begun the
// status is 200, and an error travels on it.
//
// It is safe for concurrent use. The first Result or Error is the last message;
// what comes later is dropped.
type exchange struct {
	w      http.ResponseWriter
	r      *http.Request
	accept accepted
	opts   exchangeOptions

	mu      sync.Mutex
	stream  *eventstream.Writer // nil while the answer is still to be JSON
	silence *time.Timer         // nil where the client takes no event stream
	done    bool
}

// exchangeOptions says how an exchange is held.
type exchangeOptions struct {
	// Version is the client's; it decides how codes are spelt.
	Version string
	// KeepAlive is the silence after which the stream begins, and the interval
	// of comments on it. 0 means never.
	KeepAlive time.Duration
	// Keep, if not nil, is given each message before it goes out on a stream, whether
	// or not the client is still there, and returns the id of its event, or an error if
	// it must not go out. Nil on the modern face: it has no resumption, and a client that
	// sees an id tries to resume (protocol.md 2.6).
	Keep func(message []byte) (eventID string, err error)
	// Opened is called when the stream begins, before anything else is sent on it.
	Opened func(*eventstream.Writer) error
	// Broken is called once if writing to the client fails.
	Broken func(error)
	// Op is told how the request ended. May be nil.
	Op *operation
}

// newExchange begins the answer to r. The handler must call Close before it
// returns.
func newExchange(w http.ResponseWriter, r *http.Request, o exchangeOptions) *exchange {
	x := &exchange{w: w, r: r, accept: acceptOf(r.Header), opts: o}
	if o.KeepAlive > 0 && x.accept.stream {
		x.mu.Lock() // the timer must not see a half-made exchange
		x.silence = time.AfterFunc(o.KeepAlive, x.speak)
		x.mu.Unlock()
	}
	return x
}

// speak runs on the silence timer.
func (x *exchange) speak() {
	x.mu.Lock()
	defer x.mu.Unlock()
	if !x.done && x.begin() == nil {
		x.broken(x.stream.Comment("k"))
	}
}

// begin turns the answer into an event stream, unless it is one. Without
// text/event-stream in Accept it stays JSON, and begin fails.
func (x *exchange) begin() error {
	if x.stream != nil {
		return x.stream.Err()
	}
	if x.done || !x.accept.stream {
		return eventstream.ErrClosed
	}
	if x.silence != nil {
		x.silence.Stop()
	}
	s, err := eventstream.NewWriter(x.w, x.r, eventstream.Options{WriteTimeout: writeTimeout, KeepAlive: x.opts.KeepAlive})
	if err != nil {
		return err
	}
	x.stream = s
	if x.opts.Opened != nil {
		return x.broken(x.opts.Opened(s))
	}
	return nil
}

// Notify sends a notification ahead of the result. It is dropped where the client
// takes JSON only, and after the result.
func (x *exchange) Notify(method string, params json.RawMessage) error {
	return x.Send(jsonrpc.AppendNotification(nil, method, params))
}

// Streams reports whether the client takes messages ahead of the answer.
func (x *exchange) Streams() bool { return x.accept.stream }

// Send is Notify for a message that is already complete.
func (x *exchange) Send(message []byte) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if err := x.begin(); err != nil && (x.opts.Keep == nil || x.stream == nil || x.done) {
		return err
	}
	return x.event(message)
}

// resumable has all further messages kept. With a prime the stream begins now, with an
// event from which a client can resume before there is any message.
func (x *exchange) resumable(keep func([]byte) (string, error), prime string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.done {
		return
	}
	x.opts.Keep = keep
	if prime != "" && x.begin() == nil {
		x.broken(x.stream.Prime(prime, resumeRetry))
	}
}

func (x *exchange) event(message []byte) error {
	id := ""
	if x.opts.Keep != nil {
		var err error
		if id, err = x.opts.Keep(message); err != nil {
			return err
		}
	}
	return x.broken(x.stream.Send(id, message))
}

// broken reports a failed write, and passes the error on.
func (x *exchange) broken(err error) error {
	if err != nil && err != eventstream.ErrClosed && x.opts.Broken != nil {
		x.opts.Broken(err)
		x.opts.Broken = nil
	}
	return err
}

// Result answers with a result.
func (x *exchange) Result(id jsonrpc.ID, result json.RawMessage) {
	x.finish(jsonrpc.AppendResult(make([]byte, 0, len(result)+64), id, result), http.StatusOK)
}

// Error answers with an error, spelt for the client's version. The status is sent
// only if no stream has begun; 0 means 200.
func (x *exchange) Error(id jsonrpc.ID, code int64, message string, data json.RawMessage, status int) {
	x.opts.Op.failed(code)
	e := &jsonrpc.Error{Code: mcp.CodeFor(x.opts.Version, code), Message: message, Data: data}
	if status == 0 {
		status = http.StatusOK
	}
	x.finish(jsonrpc.AppendError(nil, id, e), status)
}

// Fail is Error for any error, by the table in reply.go.
func (x *exchange) Fail(id jsonrpc.ID, err error) {
	f := failureOf(x.opts.Version, err)
	x.Error(id, f.Code, f.Message, f.Data, f.Status)
}

// finish sends the last message.
func (x *exchange) finish(message []byte, status int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.done {
		return
	}
	if x.stream == nil && status == http.StatusOK && !x.accept.json {
		_ = x.begin() // the client takes nothing but a stream
	}
	if x.stream != nil {
		_ = x.event(message)
	} else {
		x.broken(writeJSON(x.w, message, status))
	}
	x.end()
}

// drop ends the exchange without an answer. It has to be a stream for that: an empty
// body would be no valid JSON. A client that takes no streams gets the status for
// "nothing to say".
func (x *exchange) drop() {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.begin() != nil && x.stream == nil && !x.done {
		x.w.WriteHeader(http.StatusAccepted)
	}
	x.end()
}

// Close ends the exchange. It may be called more than once, and without an answer
// if the client has gone.
func (x *exchange) Close() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.end()
}

func (x *exchange) end() {
	x.done = true
	if x.silence != nil {
		x.silence.Stop()
	}
	if x.stream != nil {
		x.stream.Close()
	}
}

// jsonType is the value of a header that every answer has. Nobody changes it.
var jsonType = []string{mcp.TypeJSON}

// writeJSON writes a whole JSON body, chunk by chunk under write deadlines: a slow
// client gets a large result too, and one that has stopped reading is let go of.
func writeJSON(w http.ResponseWriter, body []byte, status int) error {
	h := w.Header()
	h["Content-Type"] = jsonType
	h["Content-Length"] = []string{strconv.Itoa(len(body))}
	to := eventstream.Pace(w, writeTimeout)
	_ = to.Begin()
	to.WriteHeader(status)
	_, err := to.Write(body)
	if err == nil {
		err = to.Flush()
	}
	_ = to.End()
	return err
}

// writeFailure answers a request that never got as far as an exchange.
func writeFailure(w http.ResponseWriter, version string, f *failure) {
	e := &jsonrpc.Error{Code: mcp.CodeFor(version, f.Code), Message: f.Message, Data: f.Data}
	status := f.Status
	if status == 0 {
		status = http.StatusOK
	}
	_ = writeJSON(w, jsonrpc.AppendError(nil, f.ID, e), status) // nobody is left to tell
}

// requestContext is the context of work done for r. It ends with the client, and
// when writing to the client fails.
func requestContext(r *http.Request) (context.Context, func(error), func()) {
	ctx, cancel := context.WithCancelCause(r.Context())
	return ctx, func(err error) { cancel(err) }, func() { cancel(nil) }
}
