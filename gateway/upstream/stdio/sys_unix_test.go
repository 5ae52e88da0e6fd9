//go:build unix

package stdio

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
)

// runs reports whether a process runs. One that ended and was not waited for fails the test
// if it is a child of this process.
func runs(t *testing.T, pid string) bool {
	t.Helper()
	stat, err := os.ReadFile("/proc/" + pid + "/stat")
	if err != nil {
		return false
	}
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	return fields[0] != "Z" || fields[1] == fmt.Sprint(os.Getpid())
}

// children of this process, running or not.
func offspring(t *testing.T) []string {
	t.Helper()
	dirs, err := os.ReadDir("/proc")
	if err != nil {
		t.Skip("no /proc")
	}
	var pids []string
	for _, d := range dirs {
		stat, err := os.ReadFile("/proc/" + d.Name() + "/stat")
		if err != nil {
			continue
		}
		fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
		if len(fields) > 1 && fields[1] == fmt.Sprint(os.Getpid()) {
			pids = append(pids, d.Name())
		}
	}
	return pids
}

func kill(t *testing.T, pid string) {
	t.Helper()
	var n int
	must(t, errorOf(fmt.Sscan(pid, &n)))
	must(t, syscall.Kill(n, syscall.SIGKILL))
}

// killSelf has this process end as by kill -9.
func killSelf() { _ = syscall.Kill(os.Getpid(), syscall.SIGKILL) }

// notThere is the error of a program that is not there.
const notThere = "no such file or directory"
