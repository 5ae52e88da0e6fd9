// Command slowserver is an ordinary MCP server with slow tools. Each call blocks until its tool is
// done, as in most servers today, and reports progress on the way to clients that ask for it. It
// knows nothing of tasks: the gateway in front of it makes them.
//
//	go run ./examples/slowserver --listen 127.0.0.1:3001
//
// It is built on the official Go SDK and serves Streamable HTTP at /mcp.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

func main() {
	listen := flag.String("listen", "127.0.0.1:3001", "address to serve on")
	stateless := flag.Bool("stateless", false, "serve without sessions, which includes clients of protocol version 2026-07-28")
	resumable := flag.Bool("resumable", false, "keep what calls say, so that a client whose connection broke can go on reading")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *listen, *stateless, *resumable); err != nil {
		log.Fatal(err)
	}
}

// run serves until ctx ends.
func run(ctx context.Context, listen string, stateless, resumable bool) error {
	listener, err := net.Listen("tcp", listen)
	if err != nil {
		return err
	}
	server := &http.Server{Handler: handler(stateless, resumable), ReadHeaderTimeout: 10 * time.Second}
	stopped := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stopped()
	log.Printf("slowserver serves http://%s/mcp", listener.Addr())
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve: %w", err)
	}
	return nil
}

// handler serves the tools at /mcp.
func handler(stateless, resumable bool) http.Handler {
	server := newServer()
	options := &mcp.StreamableHTTPOptions{Stateless: stateless}
	if resumable {
		options.EventStore = mcp.NewMemoryEventStore(nil)
	}
	mux := http.NewServeMux()
	mux.Handle("/mcp", mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, options))
	return mux
}
