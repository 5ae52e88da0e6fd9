package e2e

import (
	"net"
	"strings"
	"testing"
	"time"
)

// Told to stop with nothing to do, the gateway stops at once and well.
func TestStopWhenIdle(t *testing.T) {
	t.Parallel()
	g := startGateway(t, "--upstream", startServer(t, "slowserver"))
	callPlain(t, g.client(true), "count_words", map[string]any{"text": "one"})
	stops(t, g.Process, 5*time.Second)
	if conn, err := net.Dial("tcp", g.addr); err == nil {
		conn.Close()
		t.Error("it still listens")
	}
}

// A call that is on its way when the gateway is told to stop is answered first.
func TestStopDuringACall(t *testing.T) {
	t.Parallel()
	g := startGateway(t, "--upstream", startServer(t, "slowserver"))
	call := startCall(t, g.client(false), research(2))
	terminate(t, g.Process)
	<-call.done
	if call.err != nil {
		t.Errorf("the call failed: %v", call.err)
	}
	if code := within(t, g.Process, 10*time.Second); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// The second signal does not wait for anything.
func TestStopTwice(t *testing.T) {
	t.Parallel()
	g := startGateway(t, "--upstream", startServer(t, "slowserver"))
	startCall(t, g.client(false), research(60))
	begin := time.Now()
	terminate(t, g.Process)
	until(t, "it drains", func() bool { return strings.Contains(g.Output(), "draining; a second signal ends the process at once") })
	terminate(t, g.Process)
	if code := within(t, g.Process, 5*time.Second); code == 0 {
		t.Error("exit code 0 for a drain that was cut short")
	}
	if took := time.Since(begin); took > 10*time.Second {
		t.Errorf("that took %s", took)
	}
}

// A gateway that cannot start says so and fails.
func TestCannotStart(t *testing.T) {
	t.Parallel()
	g := startGateway(t, "--upstream", "http://127.0.0.1:9/mcp")
	p := startProgram(t, "taskgate", "serve", "--upstream", "http://127.0.0.1:9/mcp", "--listen", g.addr)
	if code := within(t, p, 10*time.Second); code != 1 || p.Output() == "" {
		t.Errorf("exit code %d:\n%s", code, p.Output())
	}
}
