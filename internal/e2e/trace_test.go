package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"taskgate/internal/mcp"
	"taskgate/internal/proc"
	"taskgate/internal/taskclient"
)

// span is what the console exporter prints of one.
type span struct {
	Name        string
	SpanKind    int
	SpanContext struct{ TraceID, SpanID string }
	Parent      struct{ TraceID, SpanID string }
	Links       []struct{ SpanContext struct{ TraceID string } }
}

// A call's trace context, in _meta, is the parent of the gateway's span and goes
// on to the server; the work behind a task is a trace of its own, linked to it.
func TestTracing(t *testing.T) {
	t.Parallel()
	const traceID, spanID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
	server, addr := startServer(t, "slowserver"), freeAddr(t)
	var spans bytes.Buffer
	g := start(t, addr, proc.Command{
		Name: "taskgate", Path: filepath.Join(bin, "taskgate"), Env: []string{"OTEL_TRACES_EXPORTER=console"}, Stdout: &spans,
		Args: []string{"serve", "--upstream", server, "--listen", addr, "--grace", "200ms"},
	})
	client := &taskclient.Client{URL: "http://" + addr + "/mcp", Tasks: true}
	answer, err := client.Do(t.Context(), mcp.MethodToolsCall, map[string]any{
		"name": "research", "arguments": research(1),
		"_meta": map[string]any{"traceparent": "00-" + traceID + "-" + spanID + "-01"},
	})
	if err != nil {
		t.Fatal(err)
	}
	var task taskclient.Task
	if err := json.Unmarshal(answer, &task); err != nil {
		t.Fatal(err)
	}
	waitFor(t, client, task.ID, "completed")
	if err := g.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := within(t, g, 10*time.Second); code != 0 {
		t.Fatalf("exit code %d", code)
	}

	const toServer, fromClient, internal = 3, 2, 1
	request := find(t, spans.Bytes(), "tools/call research", fromClient)
	if request.Parent.TraceID != traceID || request.Parent.SpanID != spanID {
		t.Errorf("the parent of the request's span is %+v", request.Parent)
	}
	onward := find(t, spans.Bytes(), "tools/call research", toServer)
	if onward.Parent.SpanID != request.SpanContext.SpanID {
		t.Errorf("the parent of the span towards the server is %+v", onward.Parent)
	}
	work := find(t, spans.Bytes(), "task research", internal)
	if work.SpanContext.TraceID == traceID || len(work.Links) != 1 || work.Links[0].SpanContext.TraceID != traceID {
		t.Errorf("the span of the task is %+v", work)
	}
}

// find returns the one span of this name and kind.
func find(t *testing.T, printed []byte, name string, kind int) span {
	t.Helper()
	for dec := json.NewDecoder(bytes.NewReader(printed)); ; {
		var s span
		err := dec.Decode(&s)
		if errors.Is(err, io.EOF) {
			t.Fatalf("no span %q of kind %d in\n%s", name, kind, printed)
		}
		if err != nil {
			t.Fatal(err)
		}
		if s.Name == name && s.SpanKind == kind {
			return s
		}
	}
}
