package e2e

import (
	"fmt"
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

// A gateway that cannot start ends with code 1 and says why. The one that is in its way goes on.
func TestCannotStart(t *testing.T) {
	t.Parallel()
	args := []string{"--upstream", startServer(t, "slowserver"), "--store", "file:" + t.TempDir()}
	g := startGateway(t, args...)
	inUse := fmt.Sprintf("is in use by process %d: end that one, or give this one a folder of its own", g.PID())
	for why, more := range map[string][]string{
		inUse: append(args, "--listen", freeAddr(t)), "address already in use": {"--upstream", "http://127.0.0.1:9/mcp", "--listen", g.addr},
	} {
		p := startProgram(t, "taskgate", append([]string{"serve"}, more...)...)
		if code := within(t, p, patience); code != 1 || !strings.Contains(p.Output(), why) {
			t.Errorf("exit code %d, and no %q in\n%s", code, why, p.Output())
		}
	}
	callPlain(t, g.client(true), "count_words", map[string]any{"text": "one two"})
}
