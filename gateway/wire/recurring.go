package wire

import (
	"cmp"
	"context"
	"log/slog"

	"taskgate/internal/sparing"
)

// recurring logs what clients make happen over and over: of each limit and refusal one line a minute, of what is told
// of each client or request 100 lines in ten seconds, with the count of the others.
type recurring struct {
	log *slog.Logger
	// access says that each request is logged.
	access bool

	limits   sparing.Repeats[limitEvent]
	refusals sparing.Repeats[refusedRequest]
	failures sparing.Repeats[failing]

	refused  sparing.Lines // lines about refusals
	left     sparing.Lines // about clients that have left
	accesses sparing.Lines // of the access log
}

// limitEvent is what happens at a limit, by its key in the configuration.
type limitEvent struct{ text, key string }

// refusedRequest is why the requests of an address are refused.
type refusedRequest struct {
	status  int
	reason  string
	address string
}

// failing is an upstream that fails in one way. Zero is what is left where too many do.
type failing struct{ upstream, kind string }

func (l *recurring) noteLimit(ctx context.Context, text, key string) {
	if e, times := l.limits.Note(limitEvent{text, key}); times > 0 {
		l.logLimit(ctx, e, times)
	}
}

func (l *recurring) logLimit(ctx context.Context, e limitEvent, times int) {
	l.log.WarnContext(ctx, cmp.Or(e.text, "limits are reached"), "limit", e.key, "times", times)
}

func (l *recurring) noteRefusal(ctx context.Context, what refusedRequest, path string) {
	if r, times := l.refusals.Note(what); times > 0 {
		l.logRefusal(ctx, r, times, slog.String("url.path", path))
	}
}

func (l *recurring) logRefusal(ctx context.Context, r refusedRequest, times int, more ...any) {
	l.logLine(ctx, &l.refused, textRefused, append([]any{
		"http.response.status_code", r.status, "reason", cmp.Or(r.reason, "more than can be told apart"), "client.address", r.address, "times", times,
	}, more...)...)
}

// logLine logs a line unless there were too many of its kind.
func (l *recurring) logLine(ctx context.Context, of *sparing.Lines, text string, attrs ...any) {
	left, pass := of.Pass()
	l.tellLeft(ctx, text, left)
	if pass {
		l.log.InfoContext(ctx, text, attrs...)
	}
}

// tellLeft logs how many lines were left out.
func (l *recurring) tellLeft(ctx context.Context, text string, left int) {
	if left > 0 {
		l.log.InfoContext(ctx, "lines were left out of the log", "line", text, "lines", left)
	}
}

// The texts of lines of which many may be left out.
const (
	textRefused = "requests are refused"
	textLeft    = "a client has left a call that still runs"
	textAccess  = "access"
)
