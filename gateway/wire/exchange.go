package wire

import (
	"context"
	"encoding/json"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"taskgate/internal/eventstream"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/internal/work"
)

// Headers of refusals, as net/http spells them: when a request may come again, in seconds, and how to sign in.
const (
	HeaderRetryAfter   = "Retry-After"
	HeaderAuthenticate = "Www-Authenticate"
)

// Exchange is the answer to one client request. It is JSON until something has to go out before the
// result (a notification, or keep-alive after silence), and an event stream from then on (design.md
// 0.21). Once the stream has begun, the status is 200, and an error travels on it.
//
// It is safe for concurrent use. The first Result or Error is the last message; later messages are
// dropped. If writing to the client fails, net/http ends the context of the request.
type Exchange struct {
	w      http.ResponseWriter
	r      *http.Request
	accept accepted
	opts   ExchangeOptions

	turn    work.Turn           // for the fields below; who has it may wait for the client, or for the log of the stream
	stream  *eventstream.Writer // nil while the answer may still be JSON
	silence *time.Timer         // nil if the client takes no event stream
	stay    func() bool         // stops waiting for the client to go; nil without such a wait
	left    bool                // the client has gone, and its connection is given back
	done    bool
	corked  bool // see Cork
	// progress is nil if the client has asked for none.
	progress *progressKeeper
	gone     bool // the client had gone when it was done

	said atomic.Int64 // when the last message ahead of the result was sent, in ns of Unix time; at first, when it began

	send func(out *eventstream.Writer, message []byte) error // see Resumable; nil before
}

// ExchangeOptions says how an exchange is held.
type ExchangeOptions struct {
	// KeepAlive is the silence after which the stream begins, and the interval of comments on it. 0
	// means never.
	KeepAlive time.Duration
	// Progress is sent to a client that hears nothing else of its request.
	Progress KeptProgress
	// Outlives says that the request goes on when its client has gone. The client's connection is
	// given back then; otherwise the server holds it for as long as the request lasts.
	Outlives bool
	// Left is called when the client has gone while the request goes on; nil for no call.
	Left func()
	// Returns says that the handler returns right after the answer: then the answer goes out in one write with the end
	// of the response.
	Returns bool
}

// NewExchange begins the answer to r. The handler must call Close before it returns.
func NewExchange(w http.ResponseWriter, r *http.Request, o ExchangeOptions) *Exchange {
	x := &Exchange{w: w, r: r, accept: acceptOf(r.Header), opts: o, turn: work.NewTurn()}
	x.said.Store(time.Now().UnixNano())
	x.turn.Take() // the timers must not see a half-made exchange
	defer x.turn.Give()
	if o.KeepAlive > 0 && x.accept.stream {
		x.silence = time.AfterFunc(o.KeepAlive, x.breakSilence)
	}
	x.keepProgress(o.Progress)
	if o.Outlives {
		x.stay = context.AfterFunc(r.Context(), x.giveBack)
	}
	return x
}

// giveBack runs when the client has gone. The request goes on, and its messages are still kept; the
// response gets no more of them.
func (x *Exchange) giveBack() {
	x.turn.Take()
	defer x.turn.Give()
	if x.done {
		return // the handler is about to return, which does the same
	}
	x.left = true
	if x.silence != nil {
		x.silence.Stop()
	}
	if x.stream != nil {
		x.stream.Close()
	}
	if x.opts.Left != nil {
		defer x.opts.Left()
	}
	// Response writers without a connection (recorders in tests) fail here.
	if conn, _, err := http.NewResponseController(x.w).Hijack(); err == nil {
		_ = conn.Close()
	}
}

// breakSilence runs on the silence timer.
func (x *Exchange) breakSilence() {
	x.turn.Take()
	defer x.turn.Give()
	if !x.done && x.beginStream() == nil {
		_ = x.stream.Comment("k") // its error is in the stream
	}
}

// beginStream turns the answer into an event stream, if it is still JSON. It fails if Accept lacks
// text/event-stream: the answer stays JSON.
func (x *Exchange) beginStream() error {
	if x.stream != nil {
		return x.stream.Err()
	}
	if x.done || x.left || !x.accept.stream {
		return eventstream.ErrClosed
	}
	if x.silence != nil {
		x.silence.Stop()
	}
	x.stream = eventstream.NewWriter(x.w, x.opts.KeepAlive)
	x.stream.Cork(x.corked)
	return nil
}

// Notify sends a notification ahead of the result. It is dropped if the client takes JSON only, and
// after the result.
func (x *Exchange) Notify(method string, params json.RawMessage) error {
	x.turn.Take()
	defer x.turn.Give()
	if method == mcp.NotifyProgress {
		x.noteProgress(params)
	}
	return x.sendMessage(jsonrpc.AppendNotification(nil, method, params))
}

// Cork(true) holds back messages ahead of the answer until Cork(false), or the answer. It holds back none that are kept
// (Resumable): these wait for the store.
func (x *Exchange) Cork(yes bool) {
	x.turn.Take()
	defer x.turn.Give()
	x.corked = yes && x.send == nil
	if x.stream != nil {
		x.stream.Cork(x.corked)
	}
}

// Silence returns how long the client has had no message. It does not wait for a client that reads slowly.
func (x *Exchange) Silence() time.Duration { return time.Since(time.Unix(0, x.said.Load())) }

// Streams reports whether the client takes messages ahead of the answer.
func (x *Exchange) Streams() bool { return x.accept.stream }

// Gone reports whether the client went before the answer was complete. A later end of the
// connection is ignored.
func (x *Exchange) Gone() bool {
	x.turn.Take()
	defer x.turn.Give()
	if x.done {
		return x.gone
	}
	return x.isDisconnected()
}

// isDisconnected reports whether the client's connection has ended.
func (x *Exchange) isDisconnected() bool { return x.r.Context().Err() != nil }

// Send is Notify for a message that is already complete.
func (x *Exchange) Send(message []byte) error {
	x.turn.Take()
	defer x.turn.Give()
	return x.sendMessage(message)
}

// sendMessage is Send. The caller has the turn.
func (x *Exchange) sendMessage(message []byte) error {
	if err := x.beginMessage(x.send != nil); err != nil {
		return err
	}
	x.said.Store(time.Now().UnixNano())
	return x.sendEvent(jsonrpc.Spliced{message})
}

// beginMessage begins the stream for a message. If messages are kept, it fails only if nothing can follow, and not for
// a client that has gone.
func (x *Exchange) beginMessage(kept bool) error {
	if err := x.beginStream(); err != nil && (!kept || x.stream == nil && !x.left || x.done) {
		return err
	}
	return nil
}

// Between runs f between two messages, with the stream of the answer, which begins now. f gets nil if the client
// went before there was a stream.
func (x *Exchange) Between(f func(out *eventstream.Writer) error) error {
	x.turn.Take()
	defer x.turn.Give()
	if err := x.beginMessage(true); err != nil {
		return err
	}
	return f(x.stream)
}

// Resumable has send write all further messages, also when the client has gone. It gets the stream of the answer,
// or nil if the client went before there was one. With first the stream begins now, with what first sends.
//
// It is for legacy clients only: a modern client that sees the id of an event tries to resume, in an era without
// resumption (protocol.md 2.6).
func (x *Exchange) Resumable(send func(out *eventstream.Writer, message []byte) error, first func(*eventstream.Writer) error) {
	x.turn.Take()
	defer x.turn.Give()
	if x.done {
		return
	}
	x.send, x.corked = send, false
	if x.stream != nil {
		x.stream.Cork(false)
	}
	if first != nil && x.beginStream() == nil {
		_ = first(x.stream) // its error is in the stream
	}
}

func (x *Exchange) sendEvent(message jsonrpc.Spliced) error {
	switch {
	case x.send != nil:
		return x.send(x.stream, message.Text())
	case x.stream == nil:
		return eventstream.ErrClosed // the client went before there was a stream
	}
	return x.stream.Send("", message...)
}

// Result answers with a result.
func (x *Exchange) Result(id jsonrpc.ID, result json.RawMessage) {
	x.Spliced(id, jsonrpc.Spliced{result})
}

// Spliced is Result for a result in pieces.
func (x *Exchange) Spliced(id jsonrpc.ID, result jsonrpc.Spliced) {
	x.sendLast(jsonrpc.SpliceResult(id, result), &Failure{})
}

// Error answers with a failure. Its status and its challenges are sent only before
// a stream has begun.
func (x *Exchange) Error(id jsonrpc.ID, f *Failure) {
	x.sendLast(f.spellMessage(id), f)
}

// sendLast sends the last message. f is empty for a result.
func (x *Exchange) sendLast(message jsonrpc.Spliced, f *Failure) {
	x.turn.Take()
	defer x.turn.Give()
	if x.done {
		return
	}
	if x.stream == nil && f.httpStatus() == http.StatusOK && !x.accept.json {
		_ = x.beginStream() // the client takes only a stream
	}
	gone := x.isDisconnected() // read before the client has everything and may leave
	switch {
	case x.stream != nil:
		x.stream.Cork(x.send == nil) // it goes out with the messages that are held back
		gone = x.sendEvent(message) != nil || gone
		if !x.opts.Returns {
			x.stream.Cork(false)
		}
	case !x.left:
		gone = writeJSON(x.w, message, f) != nil || gone
	}
	x.endExchange(gone)
}

// Drop ends the exchange unanswered. The response is an empty stream, since an empty body would be
// invalid JSON. A client that takes JSON only gets 202.
func (x *Exchange) Drop() {
	x.turn.Take()
	defer x.turn.Give()
	if x.beginStream() != nil && x.stream == nil && !x.done && !x.left {
		x.w.WriteHeader(http.StatusAccepted)
	}
	x.endExchange(x.isDisconnected())
}

// Close ends the exchange, answered or not. It may be called more than once.
func (x *Exchange) Close() {
	x.turn.Take()
	defer x.turn.Give()
	x.endExchange(x.isDisconnected())
}

func (x *Exchange) endExchange(gone bool) {
	if !x.done {
		x.done, x.gone = true, gone
	}
	if x.stay != nil {
		x.stay()
	}
	if x.progress != nil {
		x.progress.timer.Stop()
	}
	if x.silence != nil {
		x.silence.Stop()
	}
	if x.stream != nil {
		x.stream.Close()
	}
}

// jsonType is the shared value of a header that every answer has; it is read only.
var jsonType = []string{mcp.TypeJSON}

// writeJSON writes a whole JSON body, chunk by chunk under write deadlines: a slow client gets a
// large result too, and a client that has stopped reading is dropped. f says how the client may sign in, and may
// say when to try again.
func writeJSON(w http.ResponseWriter, body jsonrpc.Spliced, f *Failure) error {
	noteReason(w, f)
	h := w.Header()
	h["Content-Type"] = jsonType
	h["Content-Length"] = []string{strconv.Itoa(body.Len())}
	if retry := retryHeader(f.Status, f.Data); retry != "" {
		h.Set(HeaderRetryAfter, retry)
	}
	if len(f.Challenges) > 0 {
		h[HeaderAuthenticate] = f.Challenges
	}
	to := eventstream.Pace(w, eventstream.DefaultWriteTimeout)
	_ = to.Begin()
	to.WriteHeader(f.httpStatus())
	var err error
	for _, piece := range body { // small pieces go together in the buffer of the server
		if _, err = to.Write(piece); err != nil {
			break
		}
	}
	if err == nil {
		err = to.Flush()
	}
	_ = to.End()
	return err
}

// WriteFailure answers a request that fails before it has an exchange.
func WriteFailure(w http.ResponseWriter, f *Failure) {
	_ = writeJSON(w, f.spellMessage(f.ID), f) // the client has gone
}
