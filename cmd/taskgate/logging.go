package main

import (
	"context"
	"io"
	"log/slog"
	"net/url"
	"strings"

	"go.opentelemetry.io/otel/trace"

	"taskgate/gateway/config"
	"taskgate/gateway/operator/terminal"
)

// newLogger writes to w as the configuration says.
func newLogger(c config.Log, w io.Writer) *slog.Logger {
	var level slog.Level
	_ = level.UnmarshalText([]byte(c.Level)) // Validate has checked it
	opts := &slog.HandlerOptions{Level: level, ReplaceAttr: readableAttr}
	var h slog.Handler = slog.NewTextHandler(w, opts)
	if c.Format == config.FormatJSON {
		h = slog.NewJSONHandler(plainJSON{w}, opts)
	}
	return slog.New(traced{h})
}

// plainJSON writes lines of JSON in which characters that a terminal does not print are escaped.
type plainJSON struct{ io.Writer }

// Write implements io.Writer.
func (w plainJSON) Write(lines []byte) (int, error) {
	if _, err := w.Writer.Write(terminal.EscapeJSON(lines)); err != nil {
		return 0, err
	}
	return len(lines), nil
}

// maxAttr bounds an attribute of a record, in bytes: clients choose the names of tools and methods,
// and texts of errors may contain them.
const maxAttr = 512

// readableAttr cuts the text of an attribute if it is too long; only strings and errors can have a
// client's text. A duration is written as in the configuration, also in JSON.
func readableAttr(_ []string, a slog.Attr) slog.Attr {
	text := ""
	if err, ok := a.Value.Any().(error); ok {
		text = err.Error()
	} else if kind := a.Value.Kind(); kind == slog.KindString {
		text = a.Value.String()
	} else if kind == slog.KindDuration {
		return slog.String(a.Key, a.Value.String())
	}
	if len(text) <= maxAttr {
		return a
	}
	return slog.String(a.Key, strings.ToValidUTF8(text[:maxAttr], "")+"…")
}

// whereFrom says where a server is, in a form that the log may show: its URL, or its program.
func whereFrom(u *config.Upstream) string {
	if u.Command != "" {
		return u.Command
	}
	return shownURL(u.URL)
}

// shownURL is the URL of a server as the log may show it: the query, which may hold a key, and the
// credentials are left out.
func shownURL(raw string) string {
	u, err := url.Parse(raw)
	if err != nil {
		return "" // the text of the error has the URL in it
	}
	return (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path, RawPath: u.RawPath}).String()
}

// traced adds the ids of the current span to each record, so that a log line leads to its trace.
type traced struct{ slog.Handler }

// Handle adds trace_id and span_id if the context has a span.
func (t traced) Handle(ctx context.Context, r slog.Record) error {
	if sc := trace.SpanContextFromContext(ctx); sc.IsValid() {
		r.AddAttrs(slog.String("trace_id", sc.TraceID().String()), slog.String("span_id", sc.SpanID().String()))
	}
	return t.Handler.Handle(ctx, r)
}

// WithAttrs keeps the wrapper around the handler with attributes.
func (t traced) WithAttrs(a []slog.Attr) slog.Handler { return traced{t.Handler.WithAttrs(a)} }

// WithGroup keeps the wrapper around the handler with a group.
func (t traced) WithGroup(name string) slog.Handler { return traced{t.Handler.WithGroup(name)} }
