package e2e

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"taskgate/internal/redistest"
)

// childrenOf lists the processes that a process has started, zombies included. It needs a /proc.
func childrenOf(t *testing.T, pid int) (children []int) {
	t.Helper()
	lists, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid)) // of each thread
	need(t, err == nil && exists("/proc/self/stat"), "/proc")
	for _, file := range lists {
		list, _ := os.ReadFile(file) // the thread may have ended
		for _, field := range strings.Fields(string(list)) {
			child, err := strconv.Atoi(field)
			if err != nil {
				t.Fatal(err)
			}
			children = append(children, child)
		}
	}
	return children
}

// runs reports whether a process runs. Whether one that has ended is a zombie is up to its parent.
func runs(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !bytes.Contains(stat, []byte(") Z "))
}

// TestKilledOverStdio: when the gateway is killed, its server ends with it. The task that ran
// there fails at another replica, which says so, and whose own server answers. So it is if both are
// killed. When the server is killed, the next call is answered.
func TestKilledOverStdio(t *testing.T) {
	t.Parallel()
	for name, both := range map[string]bool{"the gateway": false, "both": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			checkKilledOverStdio(t, both)
		})
	}
}

func checkKilledOverStdio(t *testing.T, both bool) {
	dir := nodeDir(t)
	config := configured(t, fmt.Sprintf(`
store: %s
heartbeat: 1s
upstreams:
  - name: everything
    path: /mcp
    command: %q
    args: [%q, stdio]
    env: {PATH: "${PATH}"}
    cwd: %q
    start_timeout: 30s
    defaults: {grace: 500ms}
`, redistest.Start(t).URL(), nodeBinary(dir), everythingScript, dir))
	a, b := startGateway(t, config...), startGateway(t, config...)
	task := callTask(t, a.client(true), longRunning, map[string]any{"duration": 60, "steps": 60})
	servers := childrenOf(t, a.PID())
	if len(servers) == 0 {
		t.Fatal("the gateway has no children")
	}
	if err := a.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for _, pid := range servers {
		if both {
			_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended
		}
	}
	eventually(t, "the server ends", func() error {
		for _, pid := range servers {
			if runs(pid) {
				return fmt.Errorf("process %d runs", pid)
			}
		}
		return nil
	})
	end := waitFor(t, b.client(true), task.ID, "failed")
	if end.Error == nil || !strings.Contains(end.Error.Message, "may have finished the work") {
		t.Errorf("the task's error is %+v", end.Error)
	}
	echo := map[string]any{"message": "hallo"}
	if got := callPlain(t, b.client(false), "echo", echo); !strings.Contains(got, "hallo") {
		t.Errorf("the result is %q", got)
	}
	for _, pid := range childrenOf(t, b.PID()) {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the gateway takes note of the end", func() error {
			if slices.Contains(childrenOf(t, b.PID()), pid) {
				return fmt.Errorf("process %d is there", pid)
			}
			return nil
		})
	}
	if got := callPlain(t, b.client(false), "echo", echo); !strings.Contains(got, "hallo") {
		t.Errorf("the result is %q", got)
	}
	b.Stop(patience)
	if left := childrenOf(t, b.PID()); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}
