package stdio

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"testing"

	"taskgate/gateway/upstream"
	"taskgate/gateway/upstream/transport"
	"taskgate/gateway/upstream/transporttest"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/shim/shimtest"
)

func init() { children["null"] = nullChild }

// nullChild answers every request with the same little result.
func nullChild() {
	lines := bufio.NewReader(os.Stdin)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return
		}
		id, ok := jsonrpc.Get(line, "id")
		if !ok {
			continue
		}
		result := `{"resultType":"complete","content":[{"type":"text","text":"ok"}]}`
		switch method, _ := jsonrpc.GetString(line, "method"); method {
		case mcp.MethodDiscover:
			result = `{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{"tools":{}}}`
		case mcp.MethodToolsList:
			result = `{"resultType":"complete","tools":[{"name":"t","inputSchema":{"type":"object"}}]}`
		}
		fmt.Printf(`{"jsonrpc":"2.0","id":%s,"result":%s}`+"\n", id, result)
	}
}

// BenchmarkCall compares a call through the transport, and through the upstream client on top of
// it, with a line to the same program and back, one at a time and 16 at a time.
func BenchmarkCall(b *testing.B) {
	exe, err := os.Executable()
	must(b, err)
	config := Config{Command: exe, Env: []string{childVar + "=null"}, Modern: true}
	for _, n := range []int{1, 16} {
		b.Run(fmt.Sprint("pipe/", n), func(b *testing.B) { benchPipe(b, exe, n) })
		b.Run(fmt.Sprint("transport/", n), func(b *testing.B) { benchTransport(b, New(config), n) })
		b.Run(fmt.Sprint("client/", n), func(b *testing.B) { benchClient(b, New(config), n) })
	}
}

// line is a request with this id.
func line(id string) []byte {
	return jsonrpc.AppendRequest(nil, jsonrpc.StringID(id), mcp.MethodToolsCall, shimtest.Tool("t", "k").Params)
}

// inFlight runs b.N calls, n of them at a time. do makes one of worker i.
func inFlight(b *testing.B, n int, do func(i int) error) {
	if err := do(0); err != nil { // the process runs
		b.Fatal(err)
	}
	b.ReportAllocs()
	b.ResetTimer()
	var workers sync.WaitGroup
	for i := range n {
		workers.Go(func() {
			for range b.N/n + 1 {
				if err := do(i); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	workers.Wait()
	b.StopTimer()
}

// benchPipe writes lines and reads the answers, in their order.
func benchPipe(b *testing.B, exe string, n int) {
	cmd := exec.Command(exe)
	cmd.Env = []string{childVar + "=null"}
	in, err := cmd.StdinPipe()
	must(b, err)
	out, err := cmd.StdoutPipe()
	must(b, err)
	must(b, cmd.Start())
	lines := bufio.NewReaderSize(out, chunk)
	var mu sync.Mutex
	last := make(chan struct{})
	close(last)
	request := append(line("r-1"), '\n')
	inFlight(b, n, func(int) error {
		mine := make(chan struct{})
		defer close(mine)
		mu.Lock()
		before := last
		last = mine
		_, err := in.Write(request)
		mu.Unlock()
		<-before
		if err == nil {
			_, err = lines.ReadBytes('\n')
		}
		return err
	})
	in.Close()
	_ = cmd.Wait()
}

func benchTransport(b *testing.B, t *Transport, n int) {
	requests := make([]*transport.Outgoing, n)
	for i := range n {
		requests[i] = transporttest.Message("", string(line(fmt.Sprint("r-", i))))
		requests[i].Modern = true
	}
	inFlight(b, n, func(i int) error {
		in, err := t.Request(context.Background(), requests[i])
		if err != nil {
			return err
		}
		defer in.Close()
		return in.Next().Err
	})
	if err := t.Close(context.Background()); err != nil {
		b.Error(err)
	}
}

func benchClient(b *testing.B, t *Transport, n int) {
	up, err := upstream.New(upstream.Config{Era: upstream.EraModern, Transport: t, Replica: "r1"})
	must(b, err)
	request := shimtest.Tool("t", "k")
	inFlight(b, n, func(int) error {
		reply, err := up.Call(context.Background(), request, nil)
		if err == nil && reply.Error != nil {
			err = fmt.Errorf("%+v", reply.Error)
		}
		return err
	})
	if err := up.Close(context.Background()); err != nil {
		b.Error(err)
	}
}
