// Command demo shows what taskgate does. It starts an ordinary slow MCP server and the gateway in
// front of it, each as a process of its own, talks to the gateway as a client of protocol version
// 2026-07-28 would, and prints every message with the time it was sent or received. "make demo"
// builds and runs it.
//
// It ends after about twelve seconds, with exit code 0 only if every step went well, and ends all
// its processes.
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

// limit ends a demonstration that hangs, patience a child that fails to stop.
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

func run(ctx context.Context, bin string, out io.Writer, ink palette) error {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("not done after %s", limit))
	defer cancel()
	dir, err := os.MkdirTemp("", "taskgate-demo")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	children := &family{bin: bin, dir: dir}
	defer children.stop()
	url, err := children.start(ctx)
	if err != nil {
		return err
	}
	line := &timeline{out: out, ink: ink, begin: time.Now()}
	if err := story(ctx, line, url, children.restartGateway); err != nil {
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

// family has the processes of the demonstration.
type family struct {
	bin, dir  string
	processes []*proc.Process
	gateway   string // its address
}

// gatewayConfig is the configuration of "taskgate serve --upstream URL --grace 1s", with a store of
// its own and a heartbeat that suits the length of a demonstration.
const gatewayConfig = `
store: file:%s
heartbeat: 1s
upstreams: [{name: slow, path: /mcp, url: "http://%s/mcp", defaults: {grace: %s}}]
`

// start runs the slow server and the gateway and returns the gateway's URL.
func (f *family) start(ctx context.Context) (url string, err error) {
	server, err := proc.FreeAddr()
	if err != nil {
		return "", err
	}
	if f.gateway, err = proc.FreeAddr(); err != nil {
		return "", err
	}
	config := fmt.Sprintf(gatewayConfig, filepath.Join(f.dir, "store"), server, grace)
	if err := os.WriteFile(filepath.Join(f.dir, "taskgate.yaml"), []byte(config), 0o600); err != nil {
		return "", err
	}
	if err := f.run(ctx, server, "slowserver", "--resumable"); err != nil {
		return "", err
	}
	return "http://" + f.gateway + "/mcp", f.startGateway(ctx)
}

func (f *family) startGateway(ctx context.Context) error {
	return f.run(ctx, f.gateway, "taskgate", "serve", "--config", filepath.Join(f.dir, "taskgate.yaml"))
}

// restartGateway kills the gateway, as kill -9 does, and runs it again.
func (f *family) restartGateway(ctx context.Context) error {
	f.processes[len(f.processes)-1].Kill()
	return f.startGateway(ctx)
}

// run runs a program at an address and waits until it listens.
func (f *family) run(ctx context.Context, addr, name string, args ...string) error {
	path, err := filepath.Abs(filepath.Join(f.bin, name))
	if err != nil {
		return err
	}
	p, err := proc.Start(proc.Command{Name: name, Path: path, Args: append(args, "--listen", addr)})
	if err != nil {
		return fmt.Errorf("%w (\"make demo\" builds it)", err)
	}
	f.processes = append(f.processes, p)
	return p.WaitListening(ctx, addr)
}

// stop ends the processes, the last one first.
func (f *family) stop() {
	for i := len(f.processes) - 1; i >= 0; i-- {
		f.processes[i].Stop(patience)
	}
}

// output returns the output of the processes.
func (f *family) output() string {
	var text string
	for _, p := range f.processes {
		text += fmt.Sprintf("--- output of %s ---\n%s", p.Name, p.Output())
	}
	return text
}
