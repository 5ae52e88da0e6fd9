package stdio

import (
	"syscall"
	"testing"

	"taskgate/shim/shimtest"
)

// What a process has started ends with it, and is not left as a zombie where this process
// adopts orphans, as the first one of a container does.
func TestGroupEndsWithProcess(t *testing.T) {
	const setChildSubreaper = 36 // prctl(2)
	adopt := func(on uintptr) { _, _, _ = syscall.RawSyscall(syscall.SYS_PRCTL, setChildSubreaper, on, 0) }
	adopt(1)
	t.Cleanup(func() { adopt(0) })
	w := legacy(t, "plain", Config{})
	pid, grandchild := w.text("pid"), w.text("fork")
	if !runs(t, grandchild) {
		t.Fatal("the process has started nothing")
	}
	kill(t, pid)
	gone(t, grandchild)
	gone(t, pid)
	shimtest.Eventually(t, func() bool { return len(offspring(t)) == 0 })
}
