package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"taskgate/gateway/config"
)

// What a client wrote is cut in the log, also in the text of an error.
func TestLogCutsLongTexts(t *testing.T) {
	long := strings.Repeat("é", 1<<20)
	for _, format := range []config.LogFormat{config.FormatText, config.FormatJSON} {
		var out bytes.Buffer
		log := newLogger(config.Log{Level: config.LevelInfo, Format: format}, &out)
		log.With("upstream", long).Warn("request failed", "tool", long, "err", errors.New(long), "n", 7, "short", "whole")
		if n := out.Len(); n < 3*maxAttr || n > 4*maxAttr || !strings.Contains(out.String(), "whole") || !strings.Contains(out.String(), "7") {
			t.Errorf("%s: a line of %d bytes", format, n)
		}
	}
}

// A duration is written as the configuration has it, and not in nanoseconds.
func TestLogOfDurations(t *testing.T) {
	for format, want := range map[config.LogFormat]string{config.FormatText: "timeout=30s", config.FormatJSON: `"timeout":"30s"`} {
		var out bytes.Buffer
		newLogger(config.Log{Level: config.LevelInfo, Format: format}, &out).Info("draining", "timeout", 30*time.Second)
		if !strings.Contains(out.String(), want) {
			t.Errorf("%s: %s", format, &out)
		}
	}
}

// The log says where a server is, and no key that its URL holds.
func TestLogShowsNoKey(t *testing.T) {
	r := runServer(t, "http://127.0.0.1:1/mcp?key=open-sesame", nil)
	r.ends()
	if text := r.log.String(); strings.Contains(text, "open-sesame") || !strings.Contains(text, "from=http://127.0.0.1:1/mcp\n") {
		t.Error(text)
	}
	for raw, want := range map[string]string{
		"https://ann:pw@mcp.test/a%2Fb?key=k#f": "https://mcp.test/a%2Fb",
		"http://[::1]:80/mcp?":                  "http://[::1]:80/mcp",
		"://":                                   "",
	} {
		if got := shownURL(raw); got != want {
			t.Errorf("shown(%q) = %q, want %q", raw, got, want)
		}
	}
}

// Why nothing could be sent to OpenTelemetry is logged, and not sent there: that would fail, and be logged, for ever.
func TestFailedExportIsNotExported(t *testing.T) {
	var mu sync.Mutex
	var got [][]byte
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mu.Lock()
		defer mu.Unlock()
		if got = append(got, body); len(got) == 1 {
			w.WriteHeader(http.StatusTeapot)
		}
	}))
	defer receiver.Close()
	t.Setenv("OTEL_EXPORTER_OTLP_LOGS_ENDPOINT", receiver.URL)
	t.Setenv("OTEL_BLRP_SCHEDULE_DELAY", "10")
	r := runServer(t, "http://127.0.0.1:1/mcp", nil)
	const reason = "418 I'm a teapot"
	r.until("it is logged", func() bool { return strings.Contains(r.log.String(), reason) })
	r.ends()
	if text := r.log.String(); strings.Count(text, reason) != 1 || !strings.Contains(text, `level=WARN msg="OpenTelemetry reports an error"`) {
		t.Error(text)
	}
	mu.Lock()
	defer mu.Unlock()
	for _, body := range got {
		if bytes.Contains(body, []byte(reason)) {
			t.Errorf("sent: %q", body)
		}
	}
}

// Why nothing can be sent is logged at first and once in a while, and not with each batch. A reason may name a port
// that is new each time, and one signal that fails all the time hides no other.
func TestFailedExportsAreLoggedRarely(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		failed := newExportFailures(newLogger(config.Default().Log, &out))
		for port := range 9 * 60 {
			failed.Handle(fmt.Errorf("traces export: 127.0.0.1:%d: connection reset", port))
			<-time.After(time.Second)
		}
		if n := strings.Count(out.String(), "\n"); n != 3 {
			t.Errorf("%d lines in nine minutes", n)
		}
		failed.Handle(errors.New("failed to upload metrics: 401 Unauthorized"))
		<-time.After(2 * time.Minute)
		failed.Handle(errors.New("traces export: refused"))
		for n := range 1000 { // each of a kind of its own
			failed.Handle(fmt.Errorf("%d", n))
		}
		if n := strings.Count(out.String(), "\n"); n != 5+14+3 {
			t.Errorf("%d lines after eleven minutes:\n%s", n, &out)
		}
	})
}

// A signal that cannot be sent as the environment wants is named.
func TestUnknownExporterIsNamed(t *testing.T) {
	for _, signal := range []string{"traces", "metrics", "logs"} {
		t.Run(signal, func(t *testing.T) {
			t.Setenv("OTEL_"+strings.ToUpper(signal)+"_EXPORTER", "carrier-pigeon")
			if _, err := newTelemetry(t.Context(), "replica", true); err == nil || !strings.HasPrefix(err.Error(), signal+": ") {
				t.Error(err)
			}
		})
	}
}

// A process ends well although its collector has ended before it, as one beside it in a pod does.
func TestCollectorIsGoneAtTheEnd(t *testing.T) {
	t.Setenv("OTEL_EXPORTER_OTLP_LOGS_ENDPOINT", "http://127.0.0.1:1")
	r := runServer(t, "http://127.0.0.1:1/mcp", nil)
	r.ends()
	if text := r.log.String(); !strings.Contains(text, `level=WARN msg="not all telemetry could be sent"`) {
		t.Error(text)
	}
}
