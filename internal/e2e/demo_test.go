package e2e

import (
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestDemo(t *testing.T) {
	t.Parallel()
	p := startProgram(t, "demo", "--bin", bin)
	if code := within(t, p, 25*time.Second); code != 0 {
		t.Fatalf("exit code %d:\n%s", code, p.Output())
	}
	for _, want := range []string{`"resultType": "task"`, `"statusMessage": "`, "killed (kill -9)", "Report on tea", "Some say that tea", "Report on coffee", "curl"} {
		if !strings.Contains(p.Output(), want) {
			t.Errorf("no %s in\n%s", want, p.Output())
		}
	}
}

// Interrupted, the demonstration ends with an error and takes its children along.
func TestDemoInterrupted(t *testing.T) {
	t.Parallel()
	p := startProgram(t, "demo", "--bin", bin)
	until(t, "the call is on its way", func() bool { return strings.Contains(p.Output(), `"name": "research"`) })
	children := childrenOf(t, p.PID())
	if len(children) != 2 {
		t.Errorf("%d children, want 2", len(children))
	}
	if err := p.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if code := within(t, p, 10*time.Second); code != 1 {
		t.Errorf("exit code %d:\n%s", code, p.Output())
	}
	if !strings.Contains(p.Output(), "demo: interrupted") {
		t.Errorf("output:\n%s", p.Output())
	}
	for _, pid := range children {
		if syscall.Kill(pid, 0) == nil {
			t.Errorf("process %d is left", pid)
		}
	}
}

// The commands that the demonstration prints work as they are.
func TestDemoCurlCommands(t *testing.T) {
	t.Parallel()
	for _, tool := range []string{"bash", "curl", "sed"} {
		_, err := exec.LookPath(tool)
		need(t, err == nil, tool)
	}
	g := startGateway(t, "--upstream", startServer(t, "slowserver"), "--grace", "5s")
	script, err := exec.Command(filepath.Join(bin, "demo"), "--print-curl", g.url).Output()
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("bash", "-c", string(script)).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	if len(lines) != 2 || !strings.Contains(lines[0], `"resultType":"task"`) || !strings.Contains(lines[1], `"status":"working"`) {
		t.Errorf("output:\n%s", out)
	}
	g.Kill() // it would wait for the task
}
