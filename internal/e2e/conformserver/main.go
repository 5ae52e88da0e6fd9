// Command conformserver is the server that the official conformance suite is run
// against, through the gateway and for comparison without it. It offers the
// tools, prompts and resources that the suite's scenarios name, and does for each of
// them the least that the scenario asks for. Unless it is told to have tasks of its own,
// it knows nothing of them: those of the task scenarios are then what the gateway makes
// of its slow tools.
package main

import (
	"context"
	"errors"
	"flag"
	"log"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"taskgate/internal/e2e/nativetasks"
)

func main() {
	listen := flag.String("listen", "127.0.0.1:3002", "address to serve on")
	legacy := flag.Bool("legacy", false, "serve the 2025 protocol versions, with sessions, and ask by requests")
	tasks := flag.Bool("tasks", false, "run the tools of the task scenarios as tasks of 2026-07-28")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *listen, *legacy, *tasks); err != nil {
		log.Fatal(err)
	}
}

// run serves at /mcp until ctx ends, without sessions unless it is to be legacy: that
// is how the SDK serves protocol version 2026-07-28.
func run(ctx context.Context, listen string, legacy, tasks bool) error {
	fixture := newServer(legacy, tasks)
	var handler http.Handler = mcp.NewStreamableHTTPHandler(
		func(*http.Request) *mcp.Server { return fixture },
		&mcp.StreamableHTTPOptions{Stateless: !legacy},
	)
	if tasks {
		own := nativetasks.New(fixture, taskTools)
		defer own.Close()
		handler = own.HTTP(handler)
	}
	mux := http.NewServeMux()
	mux.Handle("/mcp", handler)
	server := &http.Server{Addr: listen, Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// newServer has everything that the scenarios look for.
func newServer(legacy, tasks bool) *mcp.Server {
	options := &mcp.ServerOptions{
		CompletionHandler: func(context.Context, *mcp.CompleteRequest) (*mcp.CompleteResult, error) {
			return &mcp.CompleteResult{Completion: mcp.CompletionResultDetails{Values: []string{"testing"}}}, nil
		},
	}
	if tasks {
		options.Capabilities = nativetasks.Capabilities()
	}
	server := mcp.NewServer(&mcp.Implementation{Name: "conformserver", Version: "1.0.0"}, options)
	addContentTools(server)
	addDiagnosticTools(server)
	addSchemaTools(server)
	addQuestionTools(server, legacy)
	addJobs(server)
	addPrompts(server, legacy)
	addResources(server)
	return server
}

// handler is a tool that needs no typed arguments.
type handler = func(context.Context, *mcp.CallToolRequest, map[string]any) (*mcp.CallToolResult, any, error)

// add registers a tool that takes any arguments.
func add(server *mcp.Server, name, description string, h handler) {
	mcp.AddTool(server, &mcp.Tool{Name: name, Description: description}, h)
}

// fixed is a tool that always returns the same.
func fixed(content ...mcp.Content) handler {
	return func(context.Context, *mcp.CallToolRequest, map[string]any) (*mcp.CallToolResult, any, error) {
		return &mcp.CallToolResult{Content: content}, nil, nil
	}
}

func text(s string) *mcp.TextContent { return &mcp.TextContent{Text: s} }

// wait is a pause that ends early with the call.
func wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
