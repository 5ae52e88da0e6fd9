package wire

import (
	"cmp"
	"context"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"
	"unicode"
)

// Observe measures the HTTP requests to a handler. It logs those that are refused, of each reason and address once a
// minute, and with access each request. (otelhttp costs three times as much as all other measurements of a call.)
func (t *Telemetry) Observe(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		begun, answer := time.Now(), &observed{ResponseWriter: w}
		defer func() {
			t.metrics.HTTP(r.Context(), time.Since(begun), r.Method, answer.status)
			if answer.status >= http.StatusBadRequest {
				t.logRefusal(r, answer)
			}
			if t.recurring.access {
				t.logAccess(r, answer, time.Since(begun))
			}
		}()
		next.ServeHTTP(answer, r)
	})
}

// observed is a response that notes its status, and why it refuses the request.
type observed struct {
	http.ResponseWriter
	status int    // 0: not written, for which net/http sends 200
	reason string // "" for what the status says
}

// WriteHeader notes the status.
func (a *observed) WriteHeader(status int) {
	if a.status == 0 && status >= http.StatusOK { // a status below 200 is followed by another
		a.status = status
	}
	a.ResponseWriter.WriteHeader(status)
}

// Unwrap is for http.ResponseController.
func (a *observed) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// noteReason notes why a request is refused, if it is under observation.
func noteReason(w http.ResponseWriter, f *Failure) {
	if f.Status < http.StatusBadRequest {
		return
	}
	for {
		switch at := w.(type) {
		case *observed:
			// What follows a colon differs from request to request: it is of the client.
			at.reason, _, _ = strings.Cut(f.Message, ":")
			return
		case interface{ Unwrap() http.ResponseWriter }:
			w = at.Unwrap()
		default:
			return
		}
	}
}

// logRefusal logs that a request was refused.
func (t *Telemetry) logRefusal(r *http.Request, answer *observed) {
	why := cmp.Or(answer.reason, strings.ToLower(http.StatusText(answer.status)))
	address, _, _ := net.SplitHostPort(r.RemoteAddr)
	t.recurring.noteRefusal(r.Context(), refusedRequest{answer.status, why, address}, printable(r.URL.Path))
}

// logAccess logs a request with the fields of the conventions for HTTP. The query stays out: it may hold a key.
func (t *Telemetry) logAccess(r *http.Request, answer *observed, took time.Duration) {
	address, port, _ := net.SplitHostPort(r.RemoteAddr)
	t.recurring.logLine(r.Context(), &t.recurring.accesses, textAccess,
		"http.request.method", printable(r.Method), "url.path", printable(r.URL.Path), "http.response.status_code", cmp.Or(answer.status, http.StatusOK),
		"http.server.request.duration", took.Seconds(), "client.address", address, "client.port", port,
		"server.address", printable(r.Host), "network.protocol.version", protocolVersion(r), "user_agent.original", printable(r.UserAgent()))
}

// Departure is what the log says of a client that has left a call.
type Departure struct {
	Upstream, Tool string
	Client         string // name and version, as the client has them
	Era            string
	After          time.Duration // since the call came in
	Now            string        // what happens to the call now
	Limit          time.Duration // how long such a client is known to wait; 0 for an unknown one
	Help           string        // what would help; "" for nothing
}

// ClientLeft logs that a client has left a call that still runs.
func (t *Telemetry) ClientLeft(ctx context.Context, d Departure) {
	attrs := []any{
		"upstream", d.Upstream, "tool", printable(d.Tool), "client", printable(d.Client), "era", d.Era,
		"after", d.After.Round(time.Millisecond), "now", d.Now,
	}
	if d.Limit > 0 {
		attrs = append(attrs, "waits", d.Limit)
	}
	if d.Help != "" {
		attrs = append(attrs, "helps", d.Help)
	}
	t.recurring.logLine(ctx, &t.recurring.left, textLeft, attrs...)
}

// Failing logs that requests to an upstream fail in some way: at once, and then once a minute with their number.
func (t *Telemetry) Failing(ctx context.Context, upstream, kind string, log *slog.Logger, err error) {
	if f, times := t.recurring.failures.Note(failing{upstream, kind}); times > 0 {
		if f.upstream == "" {
			log = t.recurring.log
		}
		log.WarnContext(ctx, "request failed", "times", times, "err", err)
	}
}

// TellRest logs what recurred since it was logged, if that is due, and with end what is left of all.
func (t *Telemetry) TellRest(ctx context.Context, end bool) {
	l := &t.recurring
	for e, times := range l.limits.Due() {
		l.logLimit(ctx, e, times)
	}
	for r, times := range l.refusals.Due() {
		l.logRefusal(ctx, r, times)
	}
	for f, times := range l.failures.Due() {
		l.log.WarnContext(ctx, "request failed", "upstream", f.upstream, "kind", f.kind, "times", times)
	}
	l.tellLeft(ctx, textRefused, l.refused.Left(end))
	l.tellLeft(ctx, textLeft, l.left.Left(end))
	l.tellLeft(ctx, textAccess, l.accesses.Left(end))
}

// maxShown bounds the words of a client in the log, in bytes.
const maxShown = 256

// printable is a client's text as the log shows it: cut, and without characters that control a terminal.
func printable(text string) string {
	if len(text) > maxShown {
		text = strings.ToValidUTF8(text[:maxShown], "") + "…"
	}
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, text)
}
