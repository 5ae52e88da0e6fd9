package legacy

import (
	"encoding/json"
	"net/http"
	"slices"
	"sync"

	"taskgate/gateway/wire"
	"taskgate/internal/budget"
	"taskgate/internal/eventstream"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/shim"
)

// MaxBatch bounds how many calls one body can set off. It is looked at before a body is
// taken apart.
const MaxBatch = 1000

// serveBatch answers an array of messages with an array. Only 2025-03-26 has them (X2).
// Its requests are in flight at the same time, as if each had come alone. Nothing goes out
// before the answers: no progress and no question, and the answer cannot be resumed.
func (h *Handler) serveBatch(w http.ResponseWriter, r *http.Request, s *session, p shim.Principal, body []byte) {
	var msgs []jsonrpc.Message
	var err error
	budget.From(r.Context()).InTurn(len(body), func() { msgs, err = readBatch(s.current().Version, body) })
	if err != nil {
		h.refuse(w, jsonrpc.ID{}, err)
		return
	}
	opts := wire.ExchangeOptions{Version: s.current().Version, Outlives: true}
	if slices.ContainsFunc(msgs, isRequest) { // else there is nothing to keep the client waiting for
		opts.KeepAlive = h.Global.KeepAlive
	}
	x := wire.NewExchange(w, r, opts)
	defer x.Close()
	b := &batch{}
	var begun []func()
	var refused error
	for _, msg := range msgs {
		switch msg.Kind {
		case jsonrpc.Notification:
			_ = h.heed(r.Context(), s, msg) // it is logged; the calls beside it say whether their client is to sign in
		case jsonrpc.Result, jsonrpc.ErrorResponse:
			if err := h.answerQuestion(r.Context(), s, p, msg); err != nil {
				refused = err // the others count all the same: they may be sent again
			}
		case jsonrpc.Request:
			q := newLegacyRequest(h, s, p, msg)
			q.out = b.answer()
			ctx, end := q.begin(r)
			begun = append(begun, func() {
				defer end()
				if ctx != nil {
					q.answer(ctx)
				}
			})
		}
	}
	var calls sync.WaitGroup
	for _, serve := range begun { // once all are in flight
		calls.Go(serve)
	}
	calls.Wait()
	if refused != nil { // there are no calls to be answered beside it
		x.Fail(jsonrpc.ID{}, refused)
		return
	}
	if b.refused > 0 && b.refused == len(begun) { // else there is something to read in it
		x.Refuse(b.why)
	}
	x.FinishBatch(slices.DeleteFunc(b.answers, func(m []byte) bool { return m == nil }))
}

func isRequest(msg jsonrpc.Message) bool { return msg.Kind == jsonrpc.Request }

// readBatch reads all messages before any of them has an effect: a batch is taken
// whole or not at all. It holds calls or responses, not both.
func readBatch(version string, body []byte) ([]jsonrpc.Message, error) {
	if !mcp.LookupVersion(version).Batching {
		return nil, wire.InvalidRequest(jsonrpc.ID{}, "batches do not exist in version "+version)
	}
	elems, _, err := jsonrpc.Split(body)
	if err != nil {
		return nil, wire.Unreadable(err)
	}
	msgs := make([]jsonrpc.Message, 0, len(elems))
	calls := 0
	for _, elem := range elems {
		msg, err := jsonrpc.Parse(elem)
		if err != nil {
			return nil, wire.Unreadable(err)
		}
		if msg.Kind == jsonrpc.Request && msg.Method == mcp.MethodInitialize {
			return nil, wire.InvalidRequest(jsonrpc.ID{}, "initialize cannot be part of a batch")
		}
		if msg.Kind == jsonrpc.Request && msg.ID.Long() {
			return nil, wire.InvalidRequest(msg.ID, "the id is too long")
		}
		if msg.Kind == jsonrpc.Request || msg.Kind == jsonrpc.Notification {
			calls++
		}
		msgs = append(msgs, msg)
	}
	if calls != 0 && calls != len(msgs) {
		return nil, wire.InvalidRequest(jsonrpc.ID{}, "a batch holds calls or responses, not both")
	}
	return msgs, nil
}

// batch gathers the answers to a batch, in the order of its requests.
type batch struct {
	mu      sync.Mutex
	answers [][]byte // nil where there is none
	refused int      // of them say that the client is to sign in
	why     *wire.Failure
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

// Refuse notes that the request is refused until its client has signed in.
func (a batched) Refuse(f *wire.Failure) {
	if f.Refuses() {
		a.b.mu.Lock()
		defer a.b.mu.Unlock()
		a.b.refused++
		a.b.why = f
	}
}

// Drop leaves the request out.
func (a batched) Drop() {}
