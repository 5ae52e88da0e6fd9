package proc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

func shell(t *testing.T, script string) *Process {
	t.Helper()
	p, err := Start(Command{Name: "sh", Path: "/bin/sh", Args: []string{"-c", script}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)
	return p
}

func TestExitCodeAndOutput(t *testing.T) {
	p := shell(t, "echo out; echo err >&2; exit 3")
	if code := p.ExitCode(); code != 3 {
		t.Errorf("exit code %d, want 3", code)
	}
	for _, want := range []string{"out\n", "err\n"} {
		if !strings.Contains(p.Output(), want) {
			t.Errorf("output %q lacks %q", p.Output(), want)
		}
	}
}

// A child that will not listen to SIGTERM, and its own child, are killed.
func TestStopEndsTheGroup(t *testing.T) {
	p := shell(t, "trap '' TERM; sleep 1000 & echo $!.; wait; wait")
	grandchild := firstNumber(t, p)
	p.Stop(50 * time.Millisecond)
	if code := p.ExitCode(); code != -1 {
		t.Errorf("exit code %d, want -1 (a signal)", code)
	}
	for i := 0; runs(grandchild); i++ {
		if i > 500 {
			t.Fatalf("process %d still runs", grandchild)
		}
		<-time.After(10 * time.Millisecond)
	}
}

// firstNumber waits for the process to print a number and a full stop.
func firstNumber(t *testing.T, p *Process) int {
	t.Helper()
	for range 500 {
		if digits, _, ok := strings.Cut(p.Output(), "."); ok {
			n, err := strconv.Atoi(digits)
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
		<-time.After(10 * time.Millisecond)
	}
	t.Fatalf("no number in %q", p.Output())
	return 0
}

// runs reports whether there is such a process that is not a zombie: whether
// an orphan's remains are collected is up to the system's first process.
func runs(pid int) bool {
	if syscall.Kill(pid, 0) != nil {
		return false
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err != nil || !bytes.Contains(stat, []byte(") Z "))
}

func TestWaitListeningReportsAnEnd(t *testing.T) {
	addr, err := FreeAddr()
	if err != nil {
		t.Fatal(err)
	}
	err = shell(t, "echo cannot start; exit 1").WaitListening(t.Context(), addr)
	if !errors.Is(err, errEnded) || !strings.Contains(err.Error(), "cannot start") {
		t.Errorf("error %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	err = shell(t, "sleep 1000").WaitListening(ctx, addr)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v, want a deadline", err)
	}
}

// An address is given out once, and is outside of the ports that the kernel gives out.
func TestFreeAddrIsReserved(t *testing.T) {
	given := make(map[string]bool)
	for range 200 {
		addr, err := FreeAddr()
		if err != nil {
			t.Fatal(err)
		}
		_, port, _ := strings.Cut(addr, ":")
		if n, _ := strconv.Atoi(port); given[addr] || n < firstPort || n >= lastPort {
			t.Errorf("got %s, before: %t", addr, given[addr])
		}
		given[addr] = true
		if held, err := net.ListenPacket("udp", addr); err == nil {
			held.Close()
			t.Errorf("another process may get %s", addr)
		}
	}
}

func TestStartFails(t *testing.T) {
	if _, err := Start(Command{Name: "nothing", Path: "/does/not/exist"}); err == nil {
		t.Error("no error")
	}
}

func TestTailKeepsTheEnd(t *testing.T) {
	var log tail
	for range 10 {
		_, _ = log.Write(bytes.Repeat([]byte("a"), tailSize/4))
	}
	_, _ = log.Write([]byte("end"))
	if got := log.String(); len(got) != tailSize || !strings.HasSuffix(got, "aend") {
		t.Errorf("%d bytes, ending in %q", len(got), got[len(got)-8:])
	}
}
