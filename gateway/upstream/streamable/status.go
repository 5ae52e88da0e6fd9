package streamable

import (
	"cmp"
	"html"
	"io"
	"mime"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

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
func (t *Transport) ReadStatus(resp *http.Response, m *transport.Outgoing) *transport.StatusError {
	defer resp.Body.Close()
	e := &transport.StatusError{Status: resp.StatusCode, Session: m.Session != "", Protocol: versionOf(resp)}
	e.RetryAfter = retryAfter(resp.Header.Get("Retry-After"), time.Now())
	e.Challenges, e.Token = forward.Challenge(resp)
	for name := range t.cfg.Header {
		e.Signed = e.Signed || !slices.Contains(open, http.CanonicalHeaderKey(name))
	}
	body := readSome(resp.Body, maxErrorBody)
	if len(body) == 0 {
		return e
	}
	e.Text = wordsOf(resp, body)
	said, err := jsonrpc.ParseLenient(jsonrpc.Readable(body))
	if err == nil {
		if e.Said = said.Error; e.Said != nil {
			e.Text = wordsOf(resp, []byte(e.Said.Message))
		}
	}
	if said.ID.IsZero() || said.ID.Equal(m.ID) {
		e.RPC = e.Said
	}
	return e
}

// readSome reads the begin of a body: of an endless one, the part that comes in time.
func readSome(body io.ReadCloser, most int64) []byte {
	timer := time.AfterFunc(errorMost, func() { body.Close() })
	defer timer.Stop()
	some, _ := io.ReadAll(io.LimitReader(body, most))
	return some
}

const (
	// maxWords bounds what is quoted of a body, in bytes.
	maxWords = 200
	// leastSecret is the length of the shortest value of a header that is taken out of a quoted text.
	leastSecret = 8
)

// tag is one of HTML, with the contents of those that are not for people.
var tag = regexp.MustCompile(`(?is)<(style|script)\b.*?</(style|script)>|<[^>]*>`)

// wordsOf returns the begin of what a body says, in one line: pages without their tags, and without the values of
// the request's own headers, which may be secret.
func wordsOf(resp *http.Response, body []byte) string {
	text := strings.ToValidUTF8(string(body[:min(len(body), 20*maxWords)]), "")
	if strings.HasPrefix(strings.TrimSpace(text), "<") {
		text = html.UnescapeString(tag.ReplaceAllString(text, " "))
	}
	if resp.Request != nil {
		text = withoutSecrets(text, resp.Request.Header)
	}
	text = strings.Join(strings.FieldsFunc(text, func(r rune) bool { return unicode.IsSpace(r) || !unicode.IsPrint(r) }), " ")
	if len(text) > maxWords {
		text = strings.ToValidUTF8(text[:maxWords], "") + "…"
	}
	return text
}

// open are the headers of a request that hold no secret.
var open = []string{"Accept", "Accept-Encoding", "Content-Type", "Content-Length", "User-Agent", "Traceparent", "Tracestate", "Baggage"}

// withoutSecrets takes the values of headers out of a text, and the words of those with several.
func withoutSecrets(text string, h http.Header) string {
	for name, values := range h {
		if slices.Contains(open, name) || strings.HasPrefix(name, "Mcp-") && name != mcp.HeaderSession {
			continue
		}
		for _, value := range values {
			for _, secret := range append([]string{value}, strings.FieldsFunc(value, func(r rune) bool { return strings.ContainsRune(" ;,=", r) })...) {
				if len(secret) >= leastSecret {
					text = strings.ReplaceAll(text, secret, "…")
				}
			}
		}
	}
	return text
}

// ReadNoStream is ReadStatus for a response to a GET that brought no event stream. The body of a success is
// left unread.
func (t *Transport) ReadNoStream(resp *http.Response, m *transport.Outgoing) *transport.StatusError {
	if resp.StatusCode/100 != 2 {
		return t.ReadStatus(resp, m)
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
