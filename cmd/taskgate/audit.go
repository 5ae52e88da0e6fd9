package main

import (
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"

	"go.opentelemetry.io/contrib/bridges/otelslog"

	"taskgate/gateway/config"
)

// newAudit opens the audit log of the configuration, if it has one. The caller closes the io.Closer at the
// end, if there is one.
func newAudit(to string, tel *telemetry, log *slog.Logger) (*slog.Logger, io.Closer, error) {
	switch to {
	case "":
		return nil, nil, nil
	case config.AuditStdout:
		return auditTo(os.Stdout, log), nil, nil
	case config.AuditOTel:
		if tel.logs == nil {
			return nil, nil, errors.New("no logs go to OpenTelemetry; set OTEL_LOGS_EXPORTER or OTEL_EXPORTER_OTLP_ENDPOINT")
		}
		return slog.New(otelslog.NewHandler("taskgate/audit", otelslog.WithLoggerProvider(tel.logs))), nil, nil
	}
	// With O_APPEND the file may be truncated while it is written.
	f, err := os.OpenFile(to, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, nil, err
	}
	return auditTo(f, log), f, nil
}

// checkAudit reports whether the file of an audit log can be written, or its folder is there.
func checkAudit(to string) error {
	if to == "" || to == config.AuditStdout || to == config.AuditOTel {
		return nil
	}
	f, err := os.OpenFile(to, os.O_APPEND|os.O_WRONLY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		_, err = os.Stat(filepath.Dir(to))
		return err
	}
	if err != nil {
		return err
	}
	return f.Close()
}

// auditTo writes a record as one line of JSON.
func auditTo(w io.Writer, log *slog.Logger) *slog.Logger {
	return slog.New(traced{slog.NewJSONHandler(&auditWriter{to: plainJSON{w}, log: log}, &slog.HandlerOptions{
		ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
			switch {
			case len(groups) > 0:
			case a.Key == slog.LevelKey: // all have the same level
				return slog.Attr{}
			case a.Key == slog.MessageKey:
				a.Key = "event"
			}
			return readableAttr(groups, a)
		},
	})})
}

// auditWriter logs when records begin to get lost, and when they are written again.
type auditWriter struct {
	to   io.Writer
	log  *slog.Logger
	lost atomic.Bool
}

func (w *auditWriter) Write(p []byte) (int, error) {
	n, err := w.to.Write(p)
	if lost := err != nil; w.lost.Swap(lost) != lost {
		if lost {
			w.log.Error("the audit log cannot be written; records are lost", "err", err)
		} else {
			w.log.Info("the audit log is written again")
		}
	}
	return n, err
}
