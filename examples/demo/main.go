// Command demo shows what taskgate does. It starts an ordinary slow MCP server
// and the gateway in front of it, each as a process of its own, talks to the
// gateway as a client of protocol version 2026-07-28 would, and prints every
// message with the time it was sent or received. "make demo" builds and runs it.
//
// It ends by itself after about twelve seconds, with exit code 0 only if everything
// went as it should, and leaves nothing running.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"taskgate/internal/proc"
)

// limit ends a demonstration that hangs, patience a child that does not stop.
const (
	limit    = 20 * time.Second
	patience = time.Second
)

func main() {
	bin := flag.String("bin", "bin", "directory of the programs taskgate and slowserver")
	curl := flag.String("print-curl", "", "only print the commands for a gateway at this URL")
	flag.Parse()
	if *curl != "" {
		fmt.Print(curlScript(*curl))
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *bin, os.Stdout, colours(os.Stdout)); err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		stop()
		os.Exit(1)
	}
}

// run is the demonstration.
func run(ctx context.Context, bin string, out io.Writer, ink palette) error {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("not done after %s", limit))
	defer cancel()
	var children family
	defer children.stop()
	url, err := children.start(ctx, bin)
	if err != nil {
		return err
	}
	line := &timeline{out: out, ink: ink, begin: time.Now()}
	if err := story(ctx, line, url); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		if errors.Is(err, context.Canceled) {
			return errors.New("interrupted")
		}
		return fmt.Errorf("%w\n%s", err, children.output())
	}
	fmt.Fprintf(out, "\nThe same by hand:\n\n%s", curlScript(manualGateway))
	return nil
}

// family is the processes that the demonstration started.
type family []*proc.Process

// start runs the slow server and the gateway and returns the gateway's URL.
func (f *family) start(ctx context.Context, bin string) (string, error) {
	server, err := f.add(ctx, bin, "slowserver")
	if err != nil {
		return "", err
	}
	gateway, err := f.add(ctx, bin, "taskgate", "serve", "--upstream", "http://"+server+"/mcp", "--store", "embedded", "--grace", grace.String())
	if err != nil {
		return "", err
	}
	return "http://" + gateway + "/mcp", nil
}

// add runs one program on a free port and waits until it listens.
func (f *family) add(ctx context.Context, bin, name string, args ...string) (string, error) {
	addr, err := proc.FreeAddr()
	if err != nil {
		return "", err
	}
	path, err := filepath.Abs(filepath.Join(bin, name))
	if err != nil {
		return "", err
	}
	p, err := proc.Start(proc.Command{Name: name, Path: path, Args: append(args, "--listen", addr)})
	if err != nil {
		return "", fmt.Errorf("%w (\"make demo\" builds it)", err)
	}
	*f = append(*f, p)
	return addr, p.WaitListening(ctx, addr)
}

// stop ends the processes, the last one first.
func (f *family) stop() {
	for i := len(*f) - 1; i >= 0; i-- {
		(*f)[i].Stop(patience)
	}
}

// output is what the processes had to say.
func (f *family) output() string {
	var text string
	for _, p := range *f {
		text += fmt.Sprintf("--- output of %s ---\n%s", p.Name, p.Output())
	}
	return text
}
