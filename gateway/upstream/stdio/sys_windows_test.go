package stdio

import (
	"fmt"
	"os"
	"testing"
	"unsafe"

	"golang.org/x/sys/windows"
)

// open opens a process; it fails once nobody knows the process any more.
func open(t *testing.T, pid string, access uint32) (windows.Handle, error) {
	t.Helper()
	var n uint32
	must(t, errorOf(fmt.Sscan(pid, &n)))
	return windows.OpenProcess(access, false, n)
}

// runs reports whether a process runs.
func runs(t *testing.T, pid string) bool {
	t.Helper()
	p, err := open(t, pid, windows.SYNCHRONIZE)
	if err != nil {
		return false
	}
	defer windows.CloseHandle(p)
	is, err := windows.WaitForSingleObject(p, 0)
	return err == nil && is == uint32(windows.WAIT_TIMEOUT)
}

// children of this process that run.
func offspring(t *testing.T) (pids []string) {
	t.Helper()
	all, err := windows.CreateToolhelp32Snapshot(windows.TH32CS_SNAPPROCESS, 0)
	must(t, err)
	defer windows.CloseHandle(all)
	var one windows.ProcessEntry32
	one.Size = uint32(unsafe.Sizeof(one))
	for err = windows.Process32First(all, &one); err == nil; err = windows.Process32Next(all, &one) {
		if pid := fmt.Sprint(one.ProcessID); one.ParentProcessID == uint32(os.Getpid()) && runs(t, pid) {
			pids = append(pids, pid)
		}
	}
	return pids
}

func kill(t *testing.T, pid string) {
	t.Helper()
	p, err := open(t, pid, windows.PROCESS_TERMINATE)
	must(t, err)
	defer windows.CloseHandle(p)
	must(t, windows.TerminateProcess(p, uint32(windows.STATUS_CONTROL_C_EXIT)))
}

// killSelf has this process end as kill ends others.
func killSelf() {
	_ = windows.TerminateProcess(windows.CurrentProcess(), uint32(windows.STATUS_CONTROL_C_EXIT))
}

// notThere is the error of a program that is not there.
const notThere = "file does not exist"
