package main

import (
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"taskgate/gateway/config"
	"taskgate/internal/otlptest"
)

// TestAuditFile: each record is a line of JSON, at the end of a file that may be there already.
func TestAuditFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "audit.jsonl")
	must(t, os.WriteFile(file, []byte("{\"event\":\"of before\"}\n"), 0o600))
	auditTask(t, file)
	text, err := os.ReadFile(file)
	must(t, err)
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	var last map[string]any
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &last); err != nil || len(lines) != 2 {
		t.Fatalf("%v\n%s", err, text)
	}
	if last["event"] != "task created" || last["upstream"] != "mcp" || last["tool"] != "slow" || last["principal"] != "" || last["task"] == "" || last["time"] == "" || last["level"] != nil {
		t.Errorf("%v", last)
	}
}

// setVariables sets those of lines as NAME=VALUE.
func setVariables(t *testing.T, lines []string) {
	t.Helper()
	for _, line := range lines {
		name, value, _ := strings.Cut(line, "=")
		t.Setenv(name, value)
	}
}

// auditTask has a task made by a gateway whose audit log goes somewhere, and ends both.
func auditTask(t *testing.T, to string) {
	t.Helper()
	url, _, letGo := named(t, "up")
	r := runServer(t, url, func(c *config.Config) {
		c.Audit, c.Upstreams[0].Defaults.Grace = to, time.Millisecond
	})
	if status, body := r.post("tools/call", "slow"); status != 200 {
		t.Errorf("%d %s", status, body)
	}
	letGo()
	r.ends()
}

// TestAuditByOTLP: with otel the records go where the variables send logs.
func TestAuditByOTLP(t *testing.T) {
	receiver := otlptest.Start(t)
	setVariables(t, receiver.Env())
	auditTask(t, config.AuditOTel)
	var records []otlptest.Log
	for _, l := range receiver.Logs() {
		if l.Body == "task created" {
			records = append(records, l)
		}
	}
	if len(records) != 1 || records[0].Attributes["upstream"] != "mcp" || records[0].Attributes["tool"] != "slow" || records[0].Attributes["task"] == "" {
		t.Errorf("%+v", records)
	}
}

// TestAuditNowhere: an audit log that cannot be written to is a mistake at the start.
func TestAuditNowhere(t *testing.T) {
	for _, to := range []string{"otel", t.TempDir(), filepath.Join(t.TempDir(), "none", "audit.jsonl")} {
		c := config.FromFlags("http://127.0.0.1:1/mcp")
		c.Listen, c.Store, c.Audit = "127.0.0.1:0", config.StoreEmbedded, to
		if err := newServer(c, io.Discard).openServer(t.Context()); err == nil || !strings.Contains(err.Error(), "audit: ") {
			t.Errorf("%s: %v", to, err)
		}
	}
}

// full is a disk that has no room at times.
type full struct{ err error }

func (f *full) Write(p []byte) (int, error) { return len(p), f.err }

// TestAuditIsLost: that records are lost is said once.
func TestAuditIsLost(t *testing.T) {
	var log logged
	disk := &full{}
	audit := auditTo(disk, slog.New(slog.NewTextHandler(&log, nil)))
	for _, err := range []error{nil, errors.New("no room"), errors.New("no room"), nil, nil} {
		disk.err = err
		audit.Info("x")
	}
	if text := log.String(); strings.Count(text, "records are lost") != 1 || strings.Count(text, "written again") != 1 {
		t.Error(text)
	}
}
