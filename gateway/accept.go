package gateway

import (
	"errors"
	"io"
	"mime"
	"net/http"
	"strings"
	"time"

	"taskgate/internal/eventstream"
	"taskgate/internal/mcp"
)

// accepted says which of the two forms of an answer a client takes.
type accepted struct{ json, stream bool }

// acceptOf reads the Accept header. The protocol wants both types listed; a
// client that lists one gets that one, and one that lists none gets JSON, since
// what never asked for events is unlikely to read them (curl, scripts).
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

// body is a request's body under read deadlines, the server itself having none
// beyond the headers: a client may be slow, but each chunk of what it sends has to
// come within the timeout.
type body struct {
	io.Reader
	ctl     *http.ResponseController
	timeout time.Duration
	room    int // what may still be read under the present deadline
}

// Read renews the deadline when a chunk has come.
func (b *body) Read(p []byte) (int, error) {
	if b.room <= 0 {
		// Response writers without deadlines (recorders in tests) do without.
		_ = b.ctl.SetReadDeadline(time.Now().Add(b.timeout))
		b.room = eventstream.Chunk
	}
	n, err := b.Reader.Read(p[:min(len(p), b.room)])
	b.room -= n
	return n, err
}

// readBody reads a POST's body: JSON, and at most limit bytes, of which each chunk
// has the timeout.
func readBody(w http.ResponseWriter, r *http.Request, limit int64, timeout time.Duration) ([]byte, *failure) {
	typ, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil || typ != mcp.TypeJSON {
		return nil, refused(http.StatusUnsupportedMediaType, "Content-Type must be "+mcp.TypeJSON)
	}
	if a := acceptOf(r.Header); !a.json && !a.stream {
		return nil, refused(http.StatusNotAcceptable, "Accept must list "+mcp.TypeAccept)
	}
	if p, ok := w.(*eventstream.Paced); ok {
		w = p.ResponseWriter // the server's own, which closes the connection of a body that is too large
	}
	ctl := http.NewResponseController(w)
	text, err := io.ReadAll(&body{Reader: http.MaxBytesReader(w, r.Body, limit), ctl: ctl, timeout: timeout})
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return nil, refused(http.StatusRequestEntityTooLarge, "the message is too large")
	case err != nil:
		// Past its deadline, so that the server does not wait for the rest either.
		return nil, refused(http.StatusBadRequest, "the message could not be read")
	}
	_ = ctl.SetReadDeadline(time.Time{})
	return text, nil
}

// refused is the failure of a request whose message was not read.
func refused(status int, message string) *failure {
	return &failure{Code: mcp.CodeInvalidRequest, Message: message, Status: status}
}

// trimOWS drops the optional white space around a header value (RFC 9110 5.5).
func trimOWS(s string) string { return strings.Trim(s, " \t") }
