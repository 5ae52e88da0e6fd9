package streamable

import (
	"cmp"
	"io"
	"mime"
	"net/http"
	"strconv"
	"time"

	"taskgate/gateway/upstream/forward"
	"taskgate/gateway/upstream/transport"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
)

// The bounds of reading the response of a refusal.
const (
	maxErrorBody = 64 << 10
	errorMost    = 5 * time.Second
)

// ReadStatus reads the response of a refused message, and closes it. A JSON-RPC error in it counts if it is
// about our request, whatever its content type: servers say with it what is wrong (protocol.md 2.5).
func ReadStatus(resp *http.Response, m *transport.Message) *transport.StatusError {
	defer resp.Body.Close()
	e := &transport.StatusError{Status: resp.StatusCode, Session: m.Session != "", Protocol: versionOf(resp)}
	e.RetryAfter = retryAfter(resp.Header.Get("Retry-After"), time.Now())
	e.Challenges, e.Token = forward.Challenge(resp)
	timer := time.AfterFunc(errorMost, func() { resp.Body.Close() })
	defer timer.Stop()
	body, _ := io.ReadAll(io.LimitReader(resp.Body, maxErrorBody)) // of an endless body, the part that came
	if len(body) == 0 {
		return e
	}
	said, err := jsonrpc.ParseLenient(jsonrpc.Readable(body))
	if err == nil {
		e.Said = said.Error
	}
	if said.ID.IsZero() || said.ID.Equal(m.ID) {
		e.RPC = e.Said
	}
	return e
}

// ReadNoStream is ReadStatus for a response to a GET that brought no event stream. The body of a success is
// left unread.
func ReadNoStream(resp *http.Response, m *transport.Message) *transport.StatusError {
	if resp.StatusCode/100 != 2 {
		return ReadStatus(resp, m)
	}
	resp.Body.Close()
	return &transport.StatusError{Status: resp.StatusCode, Protocol: versionOf(resp), Reason: "the answer to a GET is no event stream"}
}

// IsStream reports whether a response is an event stream.
func IsStream(resp *http.Response) bool {
	return resp.StatusCode == http.StatusOK && mediaType(resp.Header) == mcp.TypeSSE
}

// retryAfter reads the header Retry-After, in seconds or as a date; 0 if it is missing or invalid.
func retryAfter(v string, now time.Time) time.Duration {
	if n, err := strconv.ParseInt(v, 10, 32); err == nil {
		return max(0, time.Duration(n)*time.Second)
	}
	if t, err := http.ParseTime(v); err == nil {
		return max(0, t.Sub(now))
	}
	return 0
}

// mediaType is the content type without its parameters.
func mediaType(h http.Header) string {
	v := h.Get("Content-Type")
	kind, _, _ := mime.ParseMediaType(v) // a parameter that cannot be read leaves the type readable
	return cmp.Or(kind, v)
}

// versionOf spells the version of HTTP by the conventions: 1.1, and 2.
func versionOf(r *http.Response) string {
	if r.ProtoMajor == 1 {
		return "1." + strconv.Itoa(r.ProtoMinor)
	}
	return strconv.Itoa(r.ProtoMajor)
}
