package gateway

import (
	"encoding/json"
	"net/http"
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
	x := newExchange(w, r, exchangeOptions{Version: s.current().Version, KeepAlive: e.gateway.config.KeepAlive})
	defer x.Close()
	b := &batch{x: x}
	if !acceptOf(r.Header).json {
		_ = x.Open() // if that fails the client has gone
	}
	var calls sync.WaitGroup
	for _, msg := range msgs {
		switch msg.Kind {
		case jsonrpc.Notification:
			e.heed(r.Context(), s, msg)
		case jsonrpc.Request:
			q := newLegacyRequest(s, p, msg)
			q.out = batched{b}
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
	x.finishBatch(b.waiting)
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

// batch gathers the answers to a batch: they go out as one array, unless the
// answer has become an event stream. On that each is a message of its own.
type batch struct {
	x       *exchange
	mu      sync.Mutex
	waiting [][]byte
}

func (b *batch) add(message []byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.x.sendOnStream(message) {
		b.waiting = append(b.waiting, message)
	}
}

// batched is the answer to one request of a batch.
type batched struct{ b *batch }

// Notify sends a notification ahead of the answers.
func (a batched) Notify(method string, params json.RawMessage) error {
	return a.b.x.Notify(method, params)
}

// Result answers with a result.
func (a batched) Result(id jsonrpc.ID, result json.RawMessage) {
	a.b.add(jsonrpc.AppendResult(nil, id, result))
}

// Error answers with an error. The status is that of the whole batch.
func (a batched) Error(id jsonrpc.ID, code int64, message string, data json.RawMessage, _ int) {
	a.b.add(jsonrpc.AppendError(nil, id, &jsonrpc.Error{Code: code, Message: message, Data: data}))
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
