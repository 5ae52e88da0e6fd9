package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"taskgate/gateway/sealed"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/shim"
	"taskgate/shim/dialect"
)

// failure is an error as a client gets to see it. Codes are those of 2026-07-28;
// the exchange spells them for the client's version.
type failure struct {
	ID      jsonrpc.ID // where the failure comes with the message it answers
	Code    int64
	Message string
	Data    json.RawMessage
	Status  int // of the HTTP response, if it has not begun; 0 means 200
}

// Error makes a failure usable as an error.
func (f *failure) Error() string { return fmt.Sprintf("%s (%d)", f.Message, f.Code) }

// Failures that the faces find themselves (protocol.md 2.5). HTTP status 400 is
// for what is wrong with the message or its envelope, 404 for a method that does
// not exist, and 200 for everything behind: clients read a JSON-RPC body from 200
// and 400 only.

func invalidRequest(id jsonrpc.ID, message string) *failure {
	return &failure{ID: id, Code: mcp.CodeInvalidRequest, Message: message, Status: http.StatusBadRequest}
}

func headerMismatch(format string, a ...any) *failure {
	return &failure{Code: mcp.CodeHeaderMismatch, Message: fmt.Sprintf(format, a...), Status: http.StatusBadRequest}
}

func badEnvelope(format string, a ...any) *failure {
	return &failure{Code: mcp.CodeInvalidParams, Message: fmt.Sprintf(format, a...), Status: http.StatusBadRequest}
}

func invalidParams(format string, a ...any) *failure {
	return &failure{Code: mcp.CodeInvalidParams, Message: fmt.Sprintf(format, a...)}
}

func methodNotFound(method string) *failure {
	return &failure{Code: mcp.CodeMethodNotFound, Message: "method not found: " + method, Status: http.StatusNotFound}
}

// needsTasks says that the client did not declare the tasks extension (T5–T7).
func needsTasks(message string) *failure {
	return &failure{Code: mcp.CodeMissingCapability, Message: message, Status: http.StatusBadRequest,
		Data: json.RawMessage(`{"requiredCapabilities":{"extensions":{"` + mcp.ExtensionTasks + `":{}}}}`)}
}

// unreadable is the failure of a text that is no message.
func unreadable(err error) *failure {
	var p *jsonrpc.ParseError
	if !errors.As(err, &p) {
		return &failure{Code: mcp.CodeParse, Message: "unreadable message", Status: http.StatusBadRequest}
	}
	return &failure{ID: p.ID, Code: p.Code, Message: p.Reason, Status: http.StatusBadRequest}
}

// failureOf is the only map from errors to JSON-RPC codes and HTTP status. The
// version is the client's: it decides what becomes of codes that only some
// versions know (protocol.md 7.5).
func failureOf(version string, err error) *failure {
	var (
		known    *failure
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
		return &failure{Code: mcp.CodeInternal, Message: upstream.Message, Data: retryAfter(upstream.RetryAfterMs)}
	case errors.As(err, &answer): // 2.7: it is an error, and may be given anew
		return invalidParams("params.inputResponses: %s", answer)
	case errors.As(err, &busy):
		return &failure{Code: mcp.CodeInternal, Message: busy.Error(), Data: retryAfter(busy.RetryAfter.Milliseconds())}
	}
	return sentinelFailure(mcp.EraOf(version), err)
}

// drainRetry is when a client may find another replica in place of one that
// shuts down.
const drainRetry = time.Second

// sentinelFailure is failureOf for the errors that are values.
func sentinelFailure(era mcp.Era, err error) *failure {
	switch {
	case errors.Is(err, shim.ErrNotFound): // T30, T35, L36: one text for unknown, expired and foreign
		return invalidParams("unknown task")
	case errors.Is(err, shim.ErrFinal): // L24; the extension acknowledges instead (T41)
		return invalidParams("the task has already ended")
	case errors.Is(err, sealed.ErrSealed):
		return invalidParams("params.requestState was not given out for this request: to this caller, for this method, name and arguments")
	case errors.Is(err, sealed.ErrExpired):
		return invalidParams("params.requestState has expired")
	case errors.Is(err, shim.ErrAnswered):
		return invalidParams("%s", shim.ErrAnswered.Error())
	case errors.Is(err, shim.ErrCursor):
		return invalidParams("unknown cursor")
	case errors.Is(err, shim.ErrNeedsTask) && era == mcp.Modern: // T5
		return needsTasks(shim.ErrNeedsTask.Error())
	case errors.Is(err, shim.ErrNeedsTask), errors.Is(err, shim.ErrForbidsTask): // L4
		return &failure{Code: mcp.CodeMethodNotFound, Message: sentinelText(err)}
	case errors.Is(err, shim.ErrUnavailable):
		return &failure{Code: mcp.CodeInternal, Message: "task store unavailable"}
	case errors.Is(err, shim.ErrBehind):
		return &failure{Code: mcp.CodeInternal, Message: shim.ErrBehind.Error()}
	case errors.Is(err, shim.ErrDraining):
		return &failure{Code: mcp.CodeInternal, Message: shim.ErrDraining.Error(), Data: retryAfter(drainRetry.Milliseconds())}
	case errors.Is(err, shim.ErrCancelled), errors.Is(err, context.Canceled):
		return &failure{Code: mcp.CodeInternal, Message: "the call was cancelled"}
	case errors.Is(err, context.DeadlineExceeded):
		return &failure{Code: mcp.CodeInternal, Message: "the call took too long"}
	}
	return &failure{Code: mcp.CodeInternal, Message: "internal error"} // its text may say too much
}

func sentinelText(err error) string {
	if errors.Is(err, shim.ErrNeedsTask) {
		return shim.ErrNeedsTask.Error()
	}
	return shim.ErrForbidsTask.Error()
}

// answeredFailure is the JSON-RPC error of an upstream as a client of this version
// may see it (protocol.md 7.5). HTTP status is 200: the method existed.
func answeredFailure(version string, e *shim.RPCError) *failure {
	code, wrap := dialect.ErrorCode(version, e.Code)
	f := &failure{Code: code, Message: e.Message, Data: e.Data}
	if wrap {
		f.Data = dialect.Original(dialect.ErrorObject(e.Code, e.Message, e.Data))
	}
	return f
}

// logFailure logs what a client is not told, once and here at the edge: the cause
// of an upstream's failure, and errors that are the gateway's own. What a client
// got wrong is no news.
func (e *endpoint) logFailure(ctx context.Context, method string, err error) {
	var (
		known    *failure
		answered *shim.RPCError
	)
	if errors.As(err, &known) || errors.As(err, &answered) || failureOf(mcp.Version20260728, err).Code != mcp.CodeInternal {
		return
	}
	e.log.WarnContext(ctx, "request failed", "method", method, "error", err)
}

func retryAfter(ms int64) json.RawMessage {
	if ms <= 0 {
		return nil
	}
	return json.RawMessage(`{"retryAfterMs":` + strconv.FormatInt(ms, 10) + `}`)
}
