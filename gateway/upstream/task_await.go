package upstream

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/shim"
)

// This file waits for the end of a server's task. What is waited for is the answer to
// tasks/result, which comes when the task has ended (L15, L16) and on whose stream the
// task's questions come (L32). Where that answer is lost, or refused before the end,
// tasks/get says whether there is still something to wait for.

// Bounds of what a server may ask for as its pollInterval.
const (
	pollUsual = time.Second
	pollLeast = 100 * time.Millisecond
	pollMost  = time.Minute
)

// poll is how often the server wants to be asked.
func (t *serverTask) poll() time.Duration {
	t.x.rec.mu.Lock()
	defer t.x.rec.mu.Unlock()
	if t.mark.Poll <= 0 {
		return pollUsual
	}
	return min(max(time.Duration(min(t.mark.Poll, pollMost.Milliseconds()))*time.Millisecond, pollLeast), pollMost)
}

// errBeside: the stream of the call is over, and the task is followed without it.
var errBeside = fail(kindClosed, "the server closed the stream of the call", errors.New("its task goes on"))

// passing reports whether an error is one of the connection, which leaves the task as
// it is.
func passing(err error) bool {
	if se, ok := err.(*statusError); ok {
		return se.status >= 500 || se.status == http.StatusTooManyRequests || se.status == http.StatusRequestTimeout
	}
	ue, ok := errors.AsType[*shim.UpstreamError](err)
	return ok && (ue.Kind == kindClosed || ue.Kind == kindUnreachable || ue.Kind == kindOverloaded)
}

// resume follows the task of a call that was sent before, perhaps by another replica.
func (t *serverTask) resume(ctx context.Context) error {
	t.x.allowQuestions(ctx)
	t.settleName()
	return t.await(ctx)
}

// await follows the task to its end, and makes its result or its error the answer of the
// exchange. It returns why neither can be had.
func (t *serverTask) await(ctx context.Context) error {
	t.awaiting = true
	x := t.x
	for tries := 1; ; tries++ {
		err := t.result(ctx)
		if err == nil && x.answer.Error == nil {
			return x.tooLate(ctx)
		}
		if cause := ended(ctx); cause != nil {
			return cause
		}
		if se, ok := err.(*statusError); ok && se.answer() != nil && !se.lost() {
			x.answer, err = jsonrpc.Message{Kind: jsonrpc.ErrorResponse, Error: se.answer()}, nil
		}
		if err != nil && !passing(err) {
			t.abandon(ctx)
			return lostSessionIs(err)
		}
		v, lookErr := t.look(ctx)
		over, next, err := t.judge(err, v, lookErr, tries)
		if over || err != nil {
			return err
		}
		if lookErr == nil && !v.status.Final() {
			tries = 0
		}
		x.idle.pause()
		err = pause(ctx, next)
		x.idle.resume()
		if err != nil {
			return err
		}
	}
}

// lostSessionIs has whoever went on with the call learn that its task cannot be asked
// about any more.
func lostSessionIs(err error) error {
	if se, ok := err.(*statusError); ok && se.lost() {
		return &outOfReach{se.upstream()}
	}
	return public(err)
}

// judge decides what to make of a tasks/result without a result: it was answered with an
// error, or err says why it was not answered; v and lookErr are what tasks/get says. over
// says that the answer of the exchange is the outcome. If the task is neither over nor
// failed, next is after how long to ask again.
func (t *serverTask) judge(err error, v taskView, lookErr error, tries int) (over bool, next time.Duration, failed error) {
	if se, ok := lookErr.(*statusError); ok && se.lost() {
		return false, 0, lostSessionIs(lookErr)
	}
	switch {
	case lookErr != nil && tries > maxTries:
		return false, 0, netError(lookErr, true)
	case lookErr != nil:
		return false, backoff(tries), nil
	case v.refused != nil && v.refused.Code == mcp.CodeInvalidParams:
		return false, 0, &outOfReach{fail(kindClosed, "the server no longer knows the task that it made of the call; the work may have been done", v.refused)}
	case v.refused != nil && err == nil:
		return true, 0, nil
	case v.refused != nil:
		return false, 0, protocolError("the server does not say how its task stands", v.refused)
	case len(v.status.From()) == 0: // nothing moves into it
		return false, 0, protocolError("the server's task has a status that is none", nil)
	case v.status == shim.Cancelled:
		t.x.answer = jsonrpc.Message{Kind: jsonrpc.ErrorResponse, Error: v.cancelled()}
		return true, 0, nil
	case v.status.Final() && err == nil:
		return true, 0, nil // the error is the outcome (L16)
	case v.status.Final() && tries > maxTries:
		return false, 0, public(err)
	case v.status.Final():
		return false, backoff(tries), nil
	}
	return false, t.poll(), nil // it runs, and the server does not wait with its answer
}

// taskView is what tasks/get says: the state of the task, or an error.
type taskView struct {
	status  shim.Status
	message string
	refused *jsonrpc.Error
}

// cancelled is the outcome of a task that the server has cancelled by itself (L19).
func (v taskView) cancelled() *jsonrpc.Error {
	text := "the server cancelled the call"
	if v.message != "" {
		text = fmt.Sprintf("%s: %s", text, v.message)
	}
	return &jsonrpc.Error{Code: mcp.CodeInternal, Message: text}
}

// look asks how the task stands.
func (t *serverTask) look(ctx context.Context) (taskView, error) {
	m, err := t.query(ctx, mcp.MethodTasksGet)
	if err != nil || m.Error != nil {
		return taskView{refused: m.Error}, err
	}
	var v taskView
	status, _ := jsonrpc.GetString(m.Result, "status")
	v.status = shim.Status(status)
	v.message, _ = jsonrpc.GetString(m.Result, "statusMessage")
	return v, nil
}

// query asks something about the task that is answered at once.
func (t *serverTask) query(ctx context.Context, method string) (jsonrpc.Message, error) {
	ctx, cancel := t.x.w.slow(ctx)
	defer cancel()
	y := t.x.ses.exchange(t.x.to, shim.Request{Method: method, Params: t.named()}, discard{})
	y.uncancelled = true
	m, err := y.run(ctx)
	if se, ok := err.(*statusError); ok && se.answer() != nil && !se.lost() {
		return jsonrpc.Message{Kind: jsonrpc.ErrorResponse, Error: se.answer()}, nil
	}
	return m, err
}

// named are params with the task's id.
func (t *serverTask) named() []byte {
	return append(jsonrpc.AppendString([]byte(`{"taskId":`), t.id()), '}')
}

// result asks for the outcome, and hears what the server says until it is there.
// Errors may be *statusError.
func (t *serverTask) result(ctx context.Context) error {
	in, err := t.open(ctx)
	if err != nil {
		return err
	}
	return t.x.converse(ctx, in)
}

// open opens the stream of a tasks/result: the one that a checkpoint names, once, and
// then new ones. A message of the server goes out on one stream only (X5), so what the
// old one still has is not said again on a new one.
func (t *serverTask) open(ctx context.Context) (*inbound, error) {
	x := t.x
	x.res = resumption{x: x}
	if x.rec.state.Last != "" && t.mark.Wait != "" && !t.reopened {
		t.reopened = true
		x.setID(t.mark.Wait)
		if in, err := x.res.reconnect(ctx, 0); err == nil {
			return in, nil
		}
		if err := ended(ctx); err != nil {
			return nil, err
		}
	}
	t.reopened = true
	id := x.w.nextID()
	x.setID(id)
	x.rec.amend(func(c *checkpoint) { c.Last, t.mark.Wait = "", id })
	x.rec.unnoted = false
	in, err := x.post(x.life, jsonrpc.AppendRequest(nil, jsonrpc.StringID(id), mcp.MethodTasksResult, t.named()))
	if err != nil {
		return nil, x.fault(ctx, err)
	}
	return in, nil
}

// setID is the id of the request whose answer is read from now on.
func (x *exchange) setID(id string) {
	x.rec.mu.Lock()
	defer x.rec.mu.Unlock()
	x.id = id
}

// canDoWithout reports whether the end of a stream is no reason to look for the rest of it:
// the task can be followed without.
func (t *serverTask) canDoWithout(why error) bool {
	if t.id() == "" {
		return false
	}
	return why == errSilent || !t.x.rec.state.streamed()
}

// cancel ends the task at the server, where there is one (L28). One that is just being
// made is waited for a little: nobody could end it later. It reports false if the call
// is no task that is known.
func (t *serverTask) cancel(ctx context.Context) bool {
	if t == nil {
		return false
	}
	timer := time.NewTimer(cancelTimeout)
	defer timer.Stop()
	select {
	case <-t.settled:
	case <-timer.C:
	}
	if t.id() == "" {
		return false
	}
	t.abandon(ctx)
	return true
}

// abandon tells the server that nobody waits for its task any more. It does not mind
// that the task may be over.
func (t *serverTask) abandon(ctx context.Context) {
	ctx, cancel := outlive(ctx, cancelTimeout)
	defer cancel()
	body := jsonrpc.AppendRequest(nil, jsonrpc.StringID(t.x.w.nextID()), mcp.MethodTasksCancel, t.named())
	if err := t.x.w.tell(ctx, t.x.to, body); err != nil {
		t.x.w.log.Debug("cancellation was not delivered", "err", err)
	}
}
