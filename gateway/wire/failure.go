package wire

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"taskgate/gateway/sealed"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/shim"
	"taskgate/shim/dialect"
)

// Failure is an error as a client sees it. Codes are those of 2026-07-28; the exchange spells them
// for the client's version.
type Failure struct {
	ID      jsonrpc.ID // if the failure comes with the message that it answers
	Code    int64
	Message string
	Data    json.RawMessage
	Status  int // of the HTTP response, if it has not begun; 0 means 200
	// Challenges are the values of the header WWW-Authenticate, if the response has not begun.
	Challenges []string
	// Busy is the limit that is reached; nil for any other failure.
	Busy *shim.BusyError
}

// Refuses reports whether the failure tells the client to sign in, or to sign in with more rights.
// It does so by the HTTP status.
func (f *Failure) Refuses() bool {
	return f.Status == http.StatusUnauthorized || f.Status == http.StatusForbidden
}

// spellMessage makes a message of the failure.
func (f *Failure) spellMessage(id jsonrpc.ID) jsonrpc.Spliced {
	e := &jsonrpc.Error{Code: f.Code, Message: f.Message, Data: f.Data}
	return jsonrpc.Spliced{jsonrpc.AppendError(nil, id, e)}
}

func (f *Failure) httpStatus() int { return cmp.Or(f.Status, http.StatusOK) }

// Error makes a failure usable as an error.
func (f *Failure) Error() string { return fmt.Sprintf("%s (%d)", f.Message, f.Code) }

// Unwrap returns the limit that is reached, so that refusals can be counted.
func (f *Failure) Unwrap() error {
	if f.Busy == nil {
		return nil
	}
	return f.Busy
}

// Failures that the gateway finds itself (protocol.md 2.5). HTTP status 400 is for a wrong message
// or envelope, 404 for an unknown method, and 200 for everything after that: clients read a
// JSON-RPC body from 200 and 400 only.

// InvalidRequest refuses a message that is wrong in this place.
func InvalidRequest(id jsonrpc.ID, message string) *Failure {
	return &Failure{ID: id, Code: mcp.CodeInvalidRequest, Message: message, Status: http.StatusBadRequest}
}

// InvalidParams says what is wrong with the params.
func InvalidParams(format string, a ...any) *Failure {
	return &Failure{Code: mcp.CodeInvalidParams, Message: fmt.Sprintf(format, a...)}
}

// MethodNotFound says that the method is unknown for this client.
func MethodNotFound(method string) *Failure {
	return &Failure{Code: mcp.CodeMethodNotFound, Message: "method not found: " + method, Status: http.StatusNotFound}
}

// NeedsTasks says that the client's capabilities lack the tasks extension (T5–T7).
func NeedsTasks(message string) *Failure {
	return &Failure{Code: mcp.CodeMissingCapability, Message: message, Status: http.StatusBadRequest,
		Data: json.RawMessage(`{"requiredCapabilities":{"extensions":{"` + mcp.ExtensionTasks + `":{}}}}`)}
}

// Unreadable is the failure of a message that jsonrpc.Parse refuses.
func Unreadable(err error) *Failure {
	var p *jsonrpc.ParseError
	errors.As(err, &p) // it has no other errors
	return &Failure{ID: p.ID, Code: p.Code, Message: p.Reason, Status: http.StatusBadRequest}
}

// FailureOf is the only map from errors to JSON-RPC codes and HTTP status. The version is the
// client's: it decides how codes are spelt that only some versions know (protocol.md 7.5).
func FailureOf(version string, err error) *Failure {
	var (
		known    *Failure
		answered *shim.RPCError
		upstream *shim.UpstreamError
		busy     *shim.BusyError
		answer   *shim.AnswerError
	)
	switch {
	case errors.As(err, &known):
		return known
	case errors.As(err, &answered):
		return answeredFailure(version, answered)
	case errors.As(err, &upstream):
		if f := refusal(upstream); f != nil {
			return f
		}
		return &Failure{Code: mcp.CodeInternal, Message: upstream.TellClient(), Data: RetryAfter(upstream.RetryAfterMs)}
	case errors.As(err, &answer): // 2.7: it is an error, and may be given anew
		return InvalidParams("params.inputResponses: %s", answer)
	case errors.As(err, &busy):
		return busyFailure(busy, 0)
	}
	return sentinelFailure(mcp.EraOf(version), err)
}

// refusal is the failure of a request whose client has to sign in at the server, or to sign in with
// more rights: it gets the server's own answer. Nil for any other error.
func refusal(e *shim.UpstreamError) *Failure {
	var refused interface {
		Refused() (status int, challenges []string)
	}
	if !errors.As(e.Err, &refused) {
		return nil
	}
	f := &Failure{Code: mcp.CodeInvalidRequest, Message: e.TellClient()}
	f.Status, f.Challenges = refused.Refused()
	return f
}

func busyFailure(e *shim.BusyError, status int) *Failure {
	return &Failure{Code: mcp.CodeInternal, Message: e.Error(), Data: RetryAfter(e.RetryAfter.Milliseconds()), Status: status, Busy: e}
}

// KeyRate is the key of the configuration that bounds the requests of a caller per second.
const KeyRate = "rate"

// TurnAway is the failure of a request that a limit keeps out before anything is done for it, if
// err is a *shim.BusyError: HTTP status 429 if the caller itself has reached the limit, 503 if all
// callers together have. Any other error stays as it is, and so does a *shim.BusyError without
// RetryAfter: the request itself is too large.
//
// A later limit, of a tool or of a server, is the answer to a call, and FailureOf leaves it at
// status 200. design.md 0.21 has the reasons.
func TurnAway(err error) error {
	var busy *shim.BusyError
	if !errors.As(err, &busy) || busy.RetryAfter == 0 {
		return err
	}
	if busy.Key == KeyRate || strings.HasSuffix(busy.Key, shim.PerOwner) {
		return busyFailure(busy, http.StatusTooManyRequests)
	}
	return busyFailure(busy, http.StatusServiceUnavailable)
}

// DrainRetry is when a client may find another replica in place of one that shuts down.
const DrainRetry = time.Second

// storeRetry is when a client may ask again for a task after a failed read.
const storeRetry = 2 * time.Second

// sentinelFailure is FailureOf for the errors that are values.
func sentinelFailure(era mcp.Era, err error) *Failure {
	switch {
	case errors.Is(err, shim.ErrNotFound): // T30, T35, L36: one text for unknown, expired and foreign
		return InvalidParams("unknown task: the id was never given out, the task is another caller's, or its ttl is over")
	case errors.Is(err, shim.ErrFinal): // L24; the extension acknowledges instead (T41)
		return InvalidParams("the task has already ended")
	case errors.Is(err, sealed.ErrSealed):
		return InvalidParams("params.requestState was not given out for this request: to this caller, for this method, name and arguments")
	case errors.Is(err, shim.ErrCursor):
		return InvalidParams("unknown cursor")
	case errors.Is(err, shim.ErrNeedsTask) && era == mcp.Modern: // T5
		return NeedsTasks(shim.ErrNeedsTask.Error())
	case errors.Is(err, shim.ErrNeedsTask): // L4
		return &Failure{Code: mcp.CodeMethodNotFound, Message: shim.ErrNeedsTask.Error()}
	case errors.Is(err, shim.ErrForbidsTask): // L4
		return &Failure{Code: mcp.CodeMethodNotFound, Message: shim.ErrForbidsTask.Error()}
	case errors.Is(err, shim.ErrRepeat):
		return &Failure{Code: mcp.CodeInternal, Message: "task store unavailable", Data: RetryAfter(storeRetry.Milliseconds())}
	case errors.Is(err, shim.ErrUnconfirmed):
		return &Failure{Code: mcp.CodeInternal, Message: shim.ErrUnconfirmed.Error()}
	case errors.Is(err, shim.ErrUnavailable):
		return &Failure{Code: mcp.CodeInternal, Message: "task store unavailable"}
	case errors.Is(err, shim.ErrBehind):
		return &Failure{Code: mcp.CodeInternal, Message: shim.ErrBehind.Error()}
	case errors.Is(err, shim.ErrRemoved):
		return &Failure{Code: mcp.CodeInternal, Message: shim.ErrRemoved.Error()}
	case errors.Is(err, shim.ErrRefused): // a balancer may send it to another replica
		return &Failure{Code: mcp.CodeInternal, Message: err.Error(), Data: RetryAfter(DrainRetry.Milliseconds()), Status: http.StatusServiceUnavailable}
	case errors.Is(err, shim.ErrDraining):
		return &Failure{Code: mcp.CodeInternal, Message: shim.ErrDraining.Error(), Data: RetryAfter(DrainRetry.Milliseconds())}
	case errors.Is(err, shim.ErrCancelled), errors.Is(err, context.Canceled):
		return &Failure{Code: mcp.CodeInternal, Message: "the call was cancelled"}
	case errors.Is(err, context.DeadlineExceeded):
		return &Failure{Code: mcp.CodeInternal, Message: "the call took too long"}
	}
	return &Failure{Code: mcp.CodeInternal, Message: "internal error"} // its text may say too much
}

// answeredFailure is the JSON-RPC error of an upstream as a client of this version may see it
// (protocol.md 7.5). HTTP status is 200: the method existed.
func answeredFailure(version string, e *shim.RPCError) *Failure {
	code, wrap := dialect.ErrorCode(version, e.Code)
	f := &Failure{Code: code, Message: e.Message, Data: e.Data}
	if wrap {
		f.Data = dialect.Original(e.Object())
	}
	return f
}

// RetryAfter is the data of an error that says when to try again; nil for 0.
func RetryAfter(ms int64) json.RawMessage {
	if ms <= 0 {
		return nil
	}
	return json.RawMessage(`{"retryAfterMs":` + strconv.FormatInt(ms, 10) + `}`)
}

// retryHeader is the header Retry-After for a status and the data of an error, in whole seconds,
// rounded up; "" for none. A 503 always has one: the cause passes, or another replica is free of
// it.
func retryHeader(status int, data json.RawMessage) string {
	if status != http.StatusTooManyRequests && status != http.StatusServiceUnavailable {
		return ""
	}
	wait := DrainRetry
	if raw, ok := jsonrpc.Get(data, "retryAfterMs"); ok {
		ms, _ := strconv.ParseInt(string(raw), 10, 64)
		wait = time.Duration(ms) * time.Millisecond
	}
	return strconv.FormatInt(int64((wait+time.Second-1)/time.Second), 10)
}

// Refused is the failure of a request whose message stays unread.
func Refused(status int, message string) *Failure {
	return &Failure{Code: mcp.CodeInvalidRequest, Message: message, Status: status}
}
