package wire

import (
	"errors"
	"io"
	"mime"
	"net/http"
	"strings"
	"time"

	"taskgate/internal/budget"
	"taskgate/internal/eventstream"
	"taskgate/internal/mcp"
	"taskgate/shim"
)

// AcceptsStream reports whether a client takes an event stream.
func AcceptsStream(h http.Header) bool { return acceptOf(h).stream }

// accepted says which of the two forms of an answer a client takes.
type accepted struct{ json, stream bool }

// acceptOf reads the Accept header. The protocol wants both types listed. A client that lists one
// type gets that type, and a client without the header gets JSON: it probably ignores events (curl,
// scripts).
func acceptOf(h http.Header) accepted {
	values := h.Values("Accept")
	if len(values) == 0 {
		return accepted{json: true}
	}
	var a accepted
	for _, v := range values {
		for item := range strings.SplitSeq(v, ",") {
			a.add(item)
		}
	}
	return a
}

func (a *accepted) add(item string) {
	typ, params, _ := strings.Cut(item, ";")
	if strings.ReplaceAll(params, " ", "") == "q=0" {
		return
	}
	switch strings.ToLower(strings.TrimSpace(typ)) {
	case "*/*":
		a.json, a.stream = true, true
	case mcp.TypeJSON, "application/*":
		a.json = true
	case mcp.TypeSSE, "text/*":
		a.stream = true
	}
}

// body is a request's body under read deadlines, since the server itself has deadlines for headers
// only: a client may be slow, but each chunk has to come within the timeout.
type body struct {
	io.Reader
	ctl     *http.ResponseController
	timeout time.Duration
	room    int // bytes that may still be read under the present deadline
}

// Read renews the deadline when a chunk has come.
func (b *body) Read(p []byte) (int, error) {
	if b.room <= 0 {
		// It fails for response writers without deadlines (recorders in tests); the body is read
		// all the same.
		_ = b.ctl.SetReadDeadline(time.Now().Add(b.timeout))
		b.room = eventstream.Chunk
	}
	n, err := b.Reader.Read(p[:min(len(p), b.room)])
	b.room -= n
	return n, err
}

// ReadBody reads a POST's body: JSON of at most limit bytes, with the timeout for each chunk. It
// adds the bytes to the hold of the request's context, and waits until there is room for them.
func ReadBody(w http.ResponseWriter, r *http.Request, limit int64, timeout time.Duration) ([]byte, *Failure) {
	typ, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil || typ != mcp.TypeJSON {
		return nil, Refused(http.StatusUnsupportedMediaType, "Content-Type must be "+mcp.TypeJSON)
	}
	if a := acceptOf(r.Header); !a.json && !a.stream {
		return nil, Refused(http.StatusNotAcceptable, "Accept must list "+mcp.TypeAccept)
	}
	if p, ok := w.(*eventstream.Paced); ok {
		w = p.ResponseWriter // the server's own, which closes the connection of a body that is too large
	}
	ctl := http.NewResponseController(w)
	take := func(n int64) error { return budget.From(r.Context()).Take(r.Context(), n) }
	text, err := budget.ReadAll(&body{Reader: http.MaxBytesReader(w, r.Body, limit), ctl: ctl, timeout: timeout}, r.ContentLength, false, limit, take)
	var tooLarge *http.MaxBytesError
	switch {
	case errors.Is(err, budget.ErrFull):
		return nil, NoRoom()
	case errors.As(err, &tooLarge), errors.Is(err, budget.ErrTooLarge):
		f := Refused(http.StatusRequestEntityTooLarge, "the message is too large")
		f.Busy = &shim.BusyError{Key: "max_body"}
		return nil, f
	case err != nil:
		// The deadline has passed, so the server drops the rest too.
		return nil, Refused(http.StatusBadRequest, "the message could not be read")
	}
	_ = ctl.SetReadDeadline(time.Time{})
	return text, nil
}

// NoRoom is the failure of a request for which there was no room among the bytes in flight. The id of the message is
// still unread.
func NoRoom() *Failure {
	f := FailureOf("", &shim.BusyError{Key: "max_bytes_in_flight", Limit: "bytes in flight", RetryAfter: DrainRetry})
	f.Status = http.StatusServiceUnavailable
	return f
}

// TrimOWS drops the optional white space around a header value (RFC 9110 5.5).
func TrimOWS(s string) string { return strings.Trim(s, " \t") }
