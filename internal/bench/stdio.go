package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"taskgate/gateway/upstream"
	"taskgate/gateway/upstream/stdio"
	"taskgate/internal/mcp"
	"taskgate/shim"
)

// This file measures what a call over standard input and output costs. The least that it can
// cost is a bare pipe: a line that is written to a child process, and the line that comes back.
// The same child answers the gateway's transport, its upstream client and a whole gateway.

// pipeConfig is a gateway with the null upstream over HTTP and over stdio.
const pipeConfig = `
listen: %s
log: {level: warn}
upstreams:
  - {name: http, path: /mcp, url: "http://%s/mcp", era: modern, defaults: {tasks: never}}
  - {name: stdio, path: /pipe, command: %q, args: [-as, stdio], era: modern, defaults: {tasks: never}}
`

// Names of the variants, as the report has them.
const (
	barePipe      = "bare pipe"
	readPipe      = "pipe with a reader"
	pipeTransport = "transport"
	pipeClient    = "upstream client"
	gatewayHTTP   = "taskgate, server over HTTP"
	gatewayPipe   = "taskgate, server over stdio"
)

// pipeTables say what is compared with what.
var pipeTables = []struct {
	rows []string
	base string
}{
	{[]string{barePipe, readPipe, pipeTransport, pipeClient}, barePipe},
	{[]string{gatewayHTTP, gatewayPipe}, gatewayHTTP},
}

// pipeConns are how many calls are in flight.
var pipeConns = []int{1, 16}

// piping is the parties of this part.
type piping struct {
	stage
	self  string
	calls atomic.Int64 // that were made in this process

	pipe      *pipe
	read      *pipe            // with a reader
	transport *stdio.Transport // of its own
	client    *upstream.HTTP
}

// piped are the samples of this part, and the allocations of each call in this process.
type piped struct {
	results
	allocations map[cell][]float64
}

// measureStdio runs all rounds and writes the report.
func measureStdio(ctx context.Context, out io.Writer, taskgate string, s settings) error {
	p, err := newPiping(ctx, taskgate)
	if err != nil {
		return err
	}
	defer p.close()
	variants, found := p.variants(ctx), piped{results{}, map[cell][]float64{}}
	for round := range s.stdio {
		fmt.Fprintf(os.Stderr, "stdio: round %d of %d\n", round+1, s.stdio)
		for _, conns := range pipeConns {
			for i := range variants {
				if err := p.sample(ctx, variants[(i+round)%len(variants)], conns, s.length, found); err != nil {
					return fmt.Errorf("%w\n%s", err, p.complaints())
				}
			}
		}
	}
	return found.report(out, s)
}

// newPiping starts the parties.
func newPiping(ctx context.Context, taskgate string) (_ *piping, err error) {
	starting, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	p := &piping{}
	defer func() {
		if err != nil {
			p.close()
		}
	}()
	if p.self, err = os.Executable(); err != nil {
		return nil, err
	}
	if p.dir, err = os.MkdirTemp("", "taskgate-bench"); err != nil {
		return nil, err
	}
	if err := p.freeAddrs(); err != nil {
		return nil, err
	}
	file := filepath.Join(p.dir, "taskgate.yaml")
	if err := os.WriteFile(file, fmt.Appendf(nil, pipeConfig, p.gateway, p.upstream, p.self), 0o600); err != nil {
		return nil, err
	}
	if err := p.run(starting, []party{
		{p.upstream, p.self, []string{"-as", "upstream", "-listen", p.upstream}},
		{p.gateway, taskgate, []string{"serve", "--config", file}},
	}); err != nil {
		return nil, err
	}
	if p.pipe, err = newPipe(p.self, "-as", "stdio"); err != nil {
		return nil, err
	}
	if p.read, err = newPipe(p.self, "-as", "stdio"); err != nil {
		return nil, err
	}
	p.read.reader()
	p.transport = stdio.New(p.server())
	p.client, err = upstream.New(upstream.Config{Name: "bench", Era: upstream.EraModern, Replica: "bench", Transport: stdio.New(p.server())})
	return p, err
}

// server is the null upstream as a child process.
func (p *piping) server() stdio.Config {
	return stdio.Config{Name: "bench", Command: p.self, Args: []string{"-as", "stdio"}, Silence: -1}
}

// close ends the parties, and the children of this process.
func (p *piping) close() {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	for _, child := range []*pipe{p.pipe, p.read} {
		if child != nil {
			child.close()
		}
	}
	if p.transport != nil {
		_ = p.transport.Close(ctx)
	}
	if p.client != nil {
		_ = p.client.Close(ctx)
	}
	p.stage.close()
}

// variants are all that is measured, in the order of the report.
func (p *piping) variants(ctx context.Context) []variant {
	want := []byte(answered)
	var serial atomic.Int64
	line := func() []byte {
		_, body, _ := bytes.Cut(request(p.gateway, mcp.MethodToolsCall, "plain", `"name":"plain","arguments":{}`, false), []byte("\r\n\r\n"))
		return bytes.Replace(body, []byte(`"id":1,`), fmt.Appendf(nil, `"id":"w-%d",`, serial.Add(1)), 1)
	}
	overStdio := bytes.Replace(request(p.gateway, mcp.MethodToolsCall, "plain", `"name":"plain","arguments":{}`, false), []byte("POST /mcp "), []byte("POST /pipe "), 1)
	return []variant{
		{name: barePipe, want: want, dial: func() (worker, error) { return &pipeWorker{p, p.pipe.ask, append(line(), '\n')}, nil }},
		{name: readPipe, want: want, dial: func() (worker, error) { return &pipeWorker{p, p.read.await, append(line(), '\n')}, nil }},
		{name: pipeTransport, want: want, dial: func() (worker, error) { return newTransportWorker(ctx, p, line()) }},
		{name: pipeClient, want: want, dial: func() (worker, error) { return &clientWorker{ctx, p}, nil }},
		call(gatewayHTTP, p.gateway, "plain", false, answered),
		over(gatewayPipe, p.gateway, answered, overStdio),
	}
}

// sample measures one variant once.
func (p *piping) sample(ctx context.Context, v variant, conns int, length time.Duration, found piped) error {
	var before, after runtime.MemStats
	p.calls.Store(0)
	runtime.ReadMemStats(&before)
	got, err := load(ctx, v, conns, length)
	if err != nil {
		return err
	}
	runtime.ReadMemStats(&after)
	c := cell{v.name, conns}
	found.results[c] = append(found.results[c], got)
	if n := p.calls.Load(); n > 0 {
		found.allocations[c] = append(found.allocations[c], float64(after.Mallocs-before.Mallocs)/float64(n))
	}
	return nil
}

// report writes the tables. The ratios are of medians of the time that a call takes: what takes
// the processor away from a call now and then says nothing about what it costs.
func (f piped) report(out io.Writer, s settings) error {
	var b bytes.Buffer
	fmt.Fprintf(&b, "\n### Calls over stdio\n\nMedians of %d rounds of %s.\n", s.stdio, s.length)
	for _, t := range pipeTables {
		fmt.Fprintf(&b, "\n| in flight | variant | calls/s | p50 | p99 | p50 × %s | allocations per call |\n|---:|---|---:|---:|---:|---:|---:|\n", t.base)
		for _, conns := range pipeConns {
			base := median(f.results[cell{t.base, conns}])
			for _, name := range t.rows {
				c := cell{name, conns}
				if f.results[c] == nil {
					continue
				}
				m, allocations := median(f.results[c]), "–"
				if list := f.allocations[c]; len(list) > 0 {
					sum := 0.0
					for _, n := range list {
						sum += n
					}
					allocations = fmt.Sprintf("%.0f", sum/float64(len(list)))
				}
				fmt.Fprintf(&b, "| %d | %s | %.0f | %s | %s | %.2f | %s |\n", conns, name, m.rate, short(m.p50), short(m.p99), float64(m.p50)/float64(max(base.p50, 1)), allocations)
			}
		}
	}
	_, err := out.Write(b.Bytes())
	return err
}

// pipe is a child process that answers lines with lines, in their order.
type pipe struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader

	mu   sync.Mutex
	last chan struct{} // closed when the answer to the last line was read

	waiting chan chan []byte // for the reader, in the order of the lines
	over    chan struct{}    // closed when the reader has ended
}

func newPipe(path string, args ...string) (*pipe, error) {
	p := &pipe{cmd: exec.Command(path, args...), last: make(chan struct{})}
	close(p.last)
	var err error
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.out = bufio.NewReaderSize(out, 64<<10)
	return p, p.cmd.Start()
}

// close ends the child, which ends with its input.
func (p *pipe) close() {
	_ = p.in.Close()
	_ = p.cmd.Wait()
}

// ask writes a line and reads its answer. Who writes after others reads after them.
func (p *pipe) ask(line []byte) ([]byte, error) {
	mine := make(chan struct{})
	defer close(mine)
	p.mu.Lock()
	before := p.last
	p.last = mine
	_, err := p.in.Write(line)
	p.mu.Unlock()
	<-before
	if err != nil {
		return nil, err
	}
	return p.out.ReadBytes('\n')
}

// reader starts a goroutine that reads for all, until the child ends. A server that may say
// something at any time needs one.
func (p *pipe) reader() {
	p.waiting, p.over = make(chan chan []byte, 2*slices.Max(pipeConns)), make(chan struct{})
	go func() {
		defer close(p.over)
		for {
			line, err := p.out.ReadBytes('\n')
			if err != nil {
				return
			}
			to := <-p.waiting
			to <- line
		}
	}()
}

// await writes a line and waits for its answer from the reader.
func (p *pipe) await(line []byte) ([]byte, error) {
	mine := make(chan []byte, 1)
	p.mu.Lock()
	p.waiting <- mine
	_, err := p.in.Write(line)
	p.mu.Unlock()
	if err != nil {
		return nil, err
	}
	select {
	case answer := <-mine:
		return answer, nil
	case <-p.over:
		return nil, io.ErrUnexpectedEOF
	}
}

// pipeWorker asks a pipe.
type pipeWorker struct {
	p    *piping
	ask  func(line []byte) ([]byte, error)
	line []byte
}

func (w *pipeWorker) do() ([]byte, error) {
	w.p.calls.Add(1)
	return w.ask(w.line)
}

func (w *pipeWorker) Close() error { return nil }

// transportWorker makes the HTTP request that the upstream client makes, without what that costs.
type transportWorker struct {
	p       *piping
	request *http.Request
	body    []byte
	answer  bytes.Buffer
}

func newTransportWorker(ctx context.Context, p *piping, body []byte) (worker, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://bench/mcp", nil)
	if err != nil {
		return nil, err
	}
	r.Header[mcp.HeaderMethod] = []string{mcp.MethodToolsCall}
	return &transportWorker{p: p, request: r, body: body}, nil
}

func (w *transportWorker) do() ([]byte, error) {
	w.p.calls.Add(1)
	w.request.Body = io.NopCloser(bytes.NewReader(w.body))
	resp, err := w.p.transport.RoundTrip(w.request)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	w.answer.Reset()
	_, err = w.answer.ReadFrom(resp.Body)
	return w.answer.Bytes(), err
}

func (w *transportWorker) Close() error { return nil }

// clientWorker makes calls as the gateway does.
type clientWorker struct {
	ctx context.Context
	p   *piping
}

func (w *clientWorker) do() ([]byte, error) {
	w.p.calls.Add(1)
	reply, err := w.p.client.Call(w.ctx, shim.Request{Method: mcp.MethodToolsCall, Name: "plain", Params: []byte(`{"name":"plain","arguments":{}}`)}, nil)
	if err == nil && reply.Error != nil {
		err = fmt.Errorf("JSON-RPC error %d: %s", reply.Error.Code, reply.Error.Message)
	}
	return reply.Result, err
}

func (w *clientWorker) Close() error { return nil }
