package main

import (
	"context"
	"io"
	"log/slog"
	"net/url"
	"strings"

	"go.opentelemetry.io/otel/trace"

	"taskgate/gateway/config"
)

// newLogger writes to w as the configuration says.
func newLogger(c config.Log, w io.Writer) *slog.Logger {
	var level slog.Level
	if err := level.UnmarshalText([]byte(c.Level)); err != nil {
		level = slog.LevelInfo
	}
	opts := &slog.HandlerOptions{Level: level, ReplaceAttr: readableAttr}
	var h slog.Handler = slog.NewTextHandler(w, opts)
	if c.Format == config.FormatJSON {
		h = slog.NewJSONHandler(w, opts)
	}
	return slog.New(traced{h})
}

// maxAttr bounds what one attribute of a record shows, in bytes: names of tools and methods
// are what a client wrote, and texts of errors may have them.
const maxAttr = 512

// readableAttr is an attribute with a text that is cut if it is too long. What is neither a text
// nor an error has none of a client's. A duration is as in the configuration, also in JSON.
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

// whereFrom says where a server is, as the log may show it: its URL, or its program.
func whereFrom(u *config.Upstream) string {
	if u.Command != "" {
		return u.Command
	}
	return shownURL(u.URL)
}

// shownURL is the URL of a server as the log may show it: without a query, which may
// hold a key, and without credentials.
func shownURL(raw string) string {
	u, err := url.Parse(raw)
	if err != nil {
		return "" // its text is no safer than that of the URL
	}
	return (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path, RawPath: u.RawPath}).String()
}

// traced adds the ids of the current span to each record, so that a log line
// leads to its trace.
type traced struct{ slog.Handler }

// Handle adds trace_id and span_id where the context has a span.
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
