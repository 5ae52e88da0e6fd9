package gateway

import (
	"encoding/json"
	"net/http"
	"slices"
	"sync"

	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/shim"
)

// batchMax bounds how many calls one body can set off.
const batchMax = 1000

// serveBatch answers an array of messages. Only 2025-03-26 has them (X2). Its
// requests are in flight at the same time, as if each had come alone.
func (e *endpoint) serveBatch(w http.ResponseWriter, r *http.Request, s *session, p shim.Principal, body []byte) {
	msgs, err := readBatch(s.current().Version, body)
	if err != nil {
		e.refuseLegacy(w, jsonrpc.ID{}, err)
		return
	}
	ids := requestIDs(msgs)
	opts := exchangeOptions{Version: s.current().Version}
	if len(ids) > 0 { // else there is nothing to keep the client waiting for
		opts.KeepAlive = e.gateway.config.KeepAlive
	}
	x := newExchange(w, r, opts)
	defer x.Close()
	log := startLog(s, x, s.current().Version, e.gateway.config.ResumeAfter, ids...)
	defer log.finish()
	b := &batch{x: x, log: log}
	if !acceptOf(r.Header).json && len(ids) > 0 {
		_ = x.Open() // if that fails the client has gone
	}
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
			q.out, q.log = b.answer(msg.ID), log
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
	x.finishBatch(slices.DeleteFunc(b.waiting, func(m []byte) bool { return m == nil }))
}

// requestIDs are the ids that a batch is to be answered under.
func requestIDs(msgs []jsonrpc.Message) []jsonrpc.ID {
	var ids []jsonrpc.ID
	for _, msg := range msgs {
		if msg.Kind == jsonrpc.Request {
			ids = append(ids, msg.ID)
		}
	}
	return ids
}

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

// batch gathers the answers to a batch. They go out as one array, in the order of
// the requests, unless the answer has become an event stream: on that each is a
// message of its own, as soon as there is one.
type batch struct {
	x       *exchange
	log     *eventLog
	mu      sync.Mutex
	ids     []jsonrpc.ID // by request
	waiting [][]byte     // by request; nil where there is none, or it has gone out
}

// batched is the answer to one request of a batch.
type batched struct {
	b  *batch
	no int
}

func (b *batch) answer(id jsonrpc.ID) answer {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ids, b.waiting = append(b.ids, id), append(b.waiting, nil)
	return batched{b, len(b.waiting) - 1}
}

func (a batched) add(message []byte) {
	a.b.mu.Lock()
	defer a.b.mu.Unlock()
	a.b.waiting[a.no] = message
	a.b.flush()
}

// flush sends what waits, if there is a stream by now.
func (b *batch) flush() {
	for i, m := range b.waiting {
		if m != nil && b.x.sendOnStream(m) {
			b.waiting[i] = nil
			b.log.answered(b.ids[i])
		}
	}
}

// Notify sends a notification ahead of the answers that are still to come.
func (a batched) Notify(method string, params json.RawMessage) error {
	return a.Send(jsonrpc.AppendNotification(nil, method, params))
}

// Streams reports whether the answer may become an event stream.
func (a batched) Streams() bool { return a.b.x.Streams() }

// Send sends a message ahead of the answers that are still to come.
func (a batched) Send(message []byte) error {
	err := a.b.x.Send(message)
	a.b.mu.Lock()
	defer a.b.mu.Unlock()
	a.b.flush()
	return err
}

// Result answers with a result.
func (a batched) Result(id jsonrpc.ID, result json.RawMessage) {
	a.add(jsonrpc.AppendResult(nil, id, result))
}

// Error answers with an error. The status is that of the whole batch.
func (a batched) Error(id jsonrpc.ID, code int64, message string, data json.RawMessage, _ int) {
	a.add(jsonrpc.AppendError(nil, id, &jsonrpc.Error{Code: code, Message: message, Data: data}))
}

// Drop leaves the request out.
func (a batched) Drop() {}

// sendOnStream sends a message if the answer has become an event stream, and says
// whether it has.
func (x *exchange) sendOnStream(message []byte) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.stream == nil || x.done {
		return false
	}
	_ = x.event(message) // a client that has gone misses it
	return true
}

// finishBatch ends the exchange with the answers that are still to be sent. Where
// there are none, and no stream, everything was a notification, a response, or
// cancelled.
func (x *exchange) finishBatch(messages [][]byte) {
	x.mu.Lock()
	defer x.mu.Unlock()
	switch {
	case x.done:
		return
	case x.stream != nil:
		for _, m := range messages {
			_ = x.event(m)
		}
	case len(messages) == 0:
		x.w.WriteHeader(http.StatusAccepted)
	default:
		_ = x.broken(writeJSON(x.w, appendArray(nil, messages), http.StatusOK))
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
