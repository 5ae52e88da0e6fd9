package main

import (
	"bytes"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"taskgate/gateway/upstream"
	"taskgate/gateway/upstream/stdio"
	"taskgate/internal/mcp"
)

// pipeVar makes this program the child of a test.
const pipeVar = "TASKGATE_BENCH_PIPE"

func TestMain(m *testing.M) {
	if os.Getenv(pipeVar) != "" {
		if err := nullPipe(os.Stdin, os.Stdout); err != nil {
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// The null upstream answers lines as it answers HTTP, and says nothing to a notification.
func TestNullPipe(t *testing.T) {
	var out bytes.Buffer
	err := nullPipe(strings.NewReader(`{"id":1,"method":"`+mcp.MethodToolsCall+`","params":{"name":"plain"}}
{"method":"notifications/cancelled"}
{"id":"x","method":"no/method"}
`), &out)
	lines := strings.Split(out.String(), "\n")
	if err != nil || len(lines) != 3 || !strings.Contains(lines[0], answered) || !strings.Contains(lines[1], `"id":"x","error"`) {
		t.Errorf("%q, %v", lines, err)
	}
	if err := nullPipe(strings.NewReader("no JSON\n"), io.Discard); err == nil {
		t.Error("no error")
	}
}

// Each way to call the child is measured, at one call and at many.
func TestPipedCalls(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(pipeVar, "1")
	p := &piping{self: self}
	if p.pipe, err = newPipe(self); err != nil {
		t.Fatal(err)
	}
	if p.read, err = newPipe(self); err != nil {
		t.Fatal(err)
	}
	p.read.reader()
	server := stdio.Config{Name: "bench", Command: self, Env: []string{pipeVar + "=1"}, Silence: -1}
	p.transport = stdio.New(server)
	if p.client, err = upstream.New(upstream.Config{Name: "bench", Era: upstream.EraModern, Replica: "bench", Transport: stdio.New(server)}); err != nil {
		t.Fatal(err)
	}
	defer p.close()
	found := piped{results{}, map[cell][]float64{}}
	for _, v := range p.variants(t.Context())[:4] {
		for _, conns := range pipeConns {
			if err := p.sample(t.Context(), v, conns, 20*time.Millisecond, found); err != nil {
				t.Fatal(err)
			}
			c := cell{v.name, conns}
			if s := found.results[c]; len(s) != 1 || s[0].rate <= 0 || len(found.allocations[c]) != 1 || found.allocations[c][0] <= 0 {
				t.Errorf("%v: %+v, %v allocations", c, s, found.allocations[c])
			}
		}
	}
}

func TestReportStdio(t *testing.T) {
	found := piped{results{
		{barePipe, 1}:      {{rate: 300, p50: time.Microsecond}, {rate: 100, p50: 3 * time.Microsecond}, {rate: 200, p50: 2 * time.Microsecond}},
		{pipeTransport, 1}: {{rate: 100, p50: 3 * time.Microsecond}},
	}, map[cell][]float64{{pipeTransport, 1}: {10, 12}}}
	var out bytes.Buffer
	if err := found.report(&out, settings{stdio: 3, length: time.Second}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"| 1 | bare pipe | 200 | 2 µs | 0 µs | 1.00 | – |", "| 1 | transport | 100 | 3 µs | 0 µs | 1.50 | 11 |", "3 rounds of 1s"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
}
