// Command trialserver is the server that stands behind every peer: one of 2025 with sessions, on the official Go SDK,
// over Streamable HTTP or, without -listen, over stdio. What its tools do it writes into a file, a line for each event,
// so that whoever compares sees what really arrived, and how often.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

func main() {
	listen := flag.String("listen", "", "address to serve on; stdio if empty")
	events := flag.String("events", os.DevNull, "the file that gets a line for each event")
	resumable := flag.Bool("resumable", false, "keep what streams say, so that a client whose connection broke can read on")
	flag.Parse()
	file, err := os.OpenFile(*events, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	t := &trials{file: file}
	t.note("start", "", "")
	server := t.server()
	if *listen == "" {
		if err := server.Run(ctx, &mcp.StdioTransport{}); err != nil && ctx.Err() == nil {
			log.Print(err)
		}
		return
	}
	if err := serve(ctx, *listen, *resumable, server); err != nil {
		log.Fatal(err)
	}
}

// serve serves over HTTP until ctx ends.
func serve(ctx context.Context, addr string, resumable bool, server *mcp.Server) error {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	options := &mcp.StreamableHTTPOptions{}
	if resumable {
		options.EventStore = mcp.NewMemoryEventStore(nil)
	}
	mux := http.NewServeMux()
	mux.Handle("/mcp", mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, options))
	h := &http.Server{Handler: mux, ReadHeaderTimeout: time.Minute}
	stopped := context.AfterFunc(ctx, func() { _ = h.Close() })
	defer stopped()
	if err := h.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve: %w", err)
	}
	return nil
}

// trials are the tools.
type trials struct {
	mu   sync.Mutex
	file *os.File
}

// note writes an event: what happened, to which call, and more of it as JSON.
func (t *trials) note(event, id string, more any) {
	line, err := json.Marshal(map[string]any{"event": event, "id": id, "pid": os.Getpid(), "at": time.Now(), "more": more})
	if err != nil {
		panic(err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, err := t.file.Write(append(line, '\n')); err != nil {
		log.Print(err)
	}
}

// The result of a tool that has done its work.
const worked = "the work is finished"

func said(text string) *mcp.CallToolResult {
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: text}}}
}

// input is what the tools are called with.
type input struct {
	ID      string  `json:"id,omitempty" jsonschema:"the name of this call"`
	Seconds float64 `json:"seconds,omitempty" jsonschema:"how long the work takes"`
	Bytes   int     `json:"bytes,omitempty" jsonschema:"how much the tool says"`
	Number  any     `json:"number,omitempty" jsonschema:"a number"`
}

// tool adds a tool whose handler reads its input, and which answers at once if do is quick.
func (t *trials) tool(s *mcp.Server, name, description string, do func(context.Context, *mcp.CallToolRequest, input) (*mcp.CallToolResult, error)) {
	schema := json.RawMessage(`{"type":"object","properties":{"id":{"type":"string"},"seconds":{"type":"number"},"bytes":{"type":"integer"},"number":{"type":"integer"}}}`)
	s.AddTool(&mcp.Tool{Name: name, Description: description, InputSchema: schema}, func(ctx context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		var in input
		if err := json.Unmarshal(r.Params.Arguments, &in); err != nil {
			return nil, err
		}
		t.note("begin", in.ID, r.Params.Meta)
		result, err := do(ctx, r, in)
		switch {
		case ctx.Err() != nil:
			t.note("cancelled", in.ID, nil)
		default:
			t.note("end", in.ID, nil)
		}
		return result, err
	})
}

// server is the server with all of its tools.
func (t *trials) server() *mcp.Server {
	s := mcp.NewServer(&mcp.Implementation{Name: "trials", Version: "1"}, &mcp.ServerOptions{
		SubscribeHandler:   func(context.Context, *mcp.SubscribeRequest) error { return nil },
		UnsubscribeHandler: func(context.Context, *mcp.UnsubscribeRequest) error { return nil },
	})
	t.tool(s, "try_work", "Works for so many seconds, in silence.", work)
	t.tool(s, "try_large", "Says so many bytes.", func(_ context.Context, _ *mcp.CallToolRequest, in input) (*mcp.CallToolResult, error) {
		return said(strings.Repeat("taskgate\"\n", in.Bytes/10)), nil
	})
	t.tool(s, "try_progress", "Reports its progress five times, and takes so many seconds for each.", progress)
	t.tool(s, "try_log", "Writes a line into the log.", func(ctx context.Context, r *mcp.CallToolRequest, _ input) (*mcp.CallToolResult, error) {
		err := r.Session.Log(ctx, &mcp.LoggingMessageParams{Level: "warning", Data: "a line of the log"})
		return said(worked), err
	})
	t.tool(s, "try_image", "Returns an image.", func(context.Context, *mcp.CallToolRequest, input) (*mcp.CallToolResult, error) {
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.ImageContent{Data: []byte{1, 2, 3, 250, 251, 252}, MIMEType: "image/png"}}}, nil
	})
	t.tool(s, "try_meta", "Returns _meta.", func(_ context.Context, r *mcp.CallToolRequest, in input) (*mcp.CallToolResult, error) {
		return &mcp.CallToolResult{Meta: mcp.Meta{"example.com/said": "by the server"}, Content: said(worked).Content}, nil
	})
	t.tool(s, "try_number", "Returns the number that it is given.", func(_ context.Context, r *mcp.CallToolRequest, in input) (*mcp.CallToolResult, error) {
		t.note("arguments", in.ID, string(r.Params.Arguments))
		return &mcp.CallToolResult{Content: said(worked).Content, StructuredContent: json.RawMessage(`{"number":9007199254740993}`)}, nil
	})
	t.questions(s)
	t.changes(s)
	return s
}

func work(ctx context.Context, _ *mcp.CallToolRequest, in input) (*mcp.CallToolResult, error) {
	end := time.NewTimer(time.Duration(in.Seconds * float64(time.Second)))
	defer end.Stop()
	select {
	case <-end.C:
		return said(worked), nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func progress(ctx context.Context, r *mcp.CallToolRequest, in input) (*mcp.CallToolResult, error) {
	for n := range 5 {
		if _, err := work(ctx, r, in); err != nil {
			return nil, err
		}
		if token := r.Params.GetProgressToken(); token != nil {
			if err := r.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: token, Progress: float64(n + 1), Total: 5}); err != nil {
				return nil, err
			}
		}
	}
	return work(ctx, r, in)
}
