package gateway

import (
	"encoding/json"
	"net/http"
	"slices"
	"sync"

	"taskgate/internal/eventstream"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/shim"
)

// batchMax bounds how many calls one body can set off.
const batchMax = 1000

// serveBatch answers an array of messages with an array. Only 2025-03-26 has them (X2).
// Its requests are in flight at the same time, as if each had come alone. Nothing goes out
// before the answers: no progress and no question, and the answer cannot be resumed.
func (e *endpoint) serveBatch(w http.ResponseWriter, r *http.Request, s *session, p shim.Principal, body []byte) {
	msgs, err := readBatch(s.current().Version, body)
	if err != nil {
		e.refuseLegacy(w, jsonrpc.ID{}, err)
		return
	}
	opts := exchangeOptions{Version: s.current().Version}
	if slices.ContainsFunc(msgs, isRequest) { // else there is nothing to keep the client waiting for
		opts.KeepAlive = e.gateway.config.KeepAlive
	}
	x := newExchange(w, r, opts)
	defer x.Close()
	b := &batch{}
	var calls sync.WaitGroup
	var refused error
	for _, msg := range msgs {
		switch msg.Kind {
		case jsonrpc.Notification:
			e.heed(r.Context(), s, msg)
		case jsonrpc.Result, jsonrpc.ErrorResponse:
			if err := e.answerQuestion(r.Context(), s, p, msg); err != nil {
				refused = err // the others count all the same: they may be sent again
			}
		case jsonrpc.Request:
			q := newLegacyRequest(s, p, msg)
			q.out = b.answer()
			ctx, end := e.beginLegacy(r, q)
			calls.Go(func() {
				defer end()
				if ctx != nil {
					e.answerLegacy(ctx, q)
				}
			})
		}
	}
	calls.Wait()
	if refused != nil { // there are no calls to be answered beside it
		x.Fail(jsonrpc.ID{}, refused)
		return
	}
	x.finishBatch(slices.DeleteFunc(b.answers, func(m []byte) bool { return m == nil }))
}

func isRequest(msg jsonrpc.Message) bool { return msg.Kind == jsonrpc.Request }

// readBatch reads all messages before any of them has an effect: a batch is taken
// whole or not at all. It holds calls or responses, not both.
func readBatch(version string, body []byte) ([]jsonrpc.Message, error) {
	if !mcp.LookupVersion(version).Batching {
		return nil, invalidRequest(jsonrpc.ID{}, "batches do not exist in version "+version)
	}
	elems, _, err := jsonrpc.Split(body)
	if err != nil {
		return nil, unreadable(err)
	}
	if len(elems) > batchMax {
		return nil, invalidRequest(jsonrpc.ID{}, "too many messages in one batch")
	}
	msgs := make([]jsonrpc.Message, 0, len(elems))
	calls := 0
	for _, elem := range elems {
		msg, err := jsonrpc.Parse(elem)
		if err != nil {
			return nil, unreadable(err)
		}
		if msg.Kind == jsonrpc.Request && msg.Method == mcp.MethodInitialize {
			return nil, invalidRequest(jsonrpc.ID{}, "initialize cannot be part of a batch")
		}
		if msg.Kind == jsonrpc.Request || msg.Kind == jsonrpc.Notification {
			calls++
		}
		msgs = append(msgs, msg)
	}
	if calls != 0 && calls != len(msgs) {
		return nil, invalidRequest(jsonrpc.ID{}, "a batch holds calls or responses, not both")
	}
	return msgs, nil
}

// batch gathers the answers to a batch, in the order of its requests.
type batch struct {
	mu      sync.Mutex
	answers [][]byte // nil where there is none
}

// answer is the place of the next request's answer.
func (b *batch) answer() answer {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.answers = append(b.answers, nil)
	return batched{b, len(b.answers) - 1}
}

// batched is the answer to one request of a batch.
type batched struct {
	b  *batch
	no int
}

func (a batched) set(message []byte) {
	a.b.mu.Lock()
	defer a.b.mu.Unlock()
	a.b.answers[a.no] = message
}

// Notify fails: nothing goes out before the answers.
func (a batched) Notify(string, json.RawMessage) error { return eventstream.ErrClosed }

// Send fails like Notify.
func (a batched) Send([]byte) error { return eventstream.ErrClosed }

// Streams reports that the client takes no messages ahead of the answer.
func (a batched) Streams() bool { return false }

// Result answers with a result.
func (a batched) Result(id jsonrpc.ID, result json.RawMessage) {
	a.set(jsonrpc.AppendResult(nil, id, result))
}

// Error answers with an error. The status is that of the whole batch.
func (a batched) Error(id jsonrpc.ID, code int64, message string, data json.RawMessage, _ int) {
	a.set(jsonrpc.AppendError(nil, id, &jsonrpc.Error{Code: code, Message: message, Data: data}))
}

// Drop leaves the request out.
func (a batched) Drop() {}

// finishBatch ends the exchange with an array of answers. Where there are none everything
// was a notification, a response, or cancelled. Where a keep-alive has begun an event
// stream, or the client takes nothing else, each answer is an event.
func (x *exchange) finishBatch(answers [][]byte) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if len(answers) > 0 && !x.accept.json {
		_ = x.begin() // if that fails the client has gone
	}
	switch {
	case x.stream != nil:
		for _, m := range answers {
			_ = x.event(m) // a client that has gone misses it
		}
	case len(answers) == 0:
		x.w.WriteHeader(http.StatusAccepted)
	default:
		_ = x.broken(writeJSON(x.w, appendArray(nil, answers), http.StatusOK))
	}
	x.end()
}

func appendArray(dst []byte, elems [][]byte) []byte {
	dst = append(dst, '[')
	for i, e := range elems {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, e...)
	}
	return append(dst, ']')
}
