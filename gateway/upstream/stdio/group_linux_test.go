package stdio

import (
	"syscall"
	"testing"

	"taskgate/shim/shimtest"
)

// What a process has started ends with it, and is not left as a zombie where this process
// adopts orphans, as the first one of a container does.
func TestGroupEndsWithProcess(t *testing.T) {
	adoptOrphans(t)
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

// What a process leaves behind is not left as a zombie either, while the process runs on.
func TestOrphansAreCollected(t *testing.T) {
	adoptOrphans(t)
	w := legacy(t, "plain", Config{})
	for range 3 {
		gone(t, w.text("orphan"))
	}
	if n := len(offspring(t)); n != 1 {
		t.Errorf("%d children, and one process", n)
	}
	pid := w.text("pid")
	kill(t, pid)
	gone(t, pid)
}

// adoptOrphans makes this process the parent of those below it that lose theirs, as the first
// process of a container is.
func adoptOrphans(t *testing.T) {
	t.Helper()
	const setChildSubreaper = 36 // prctl(2)
	adopt := func(on uintptr) { _, _, _ = syscall.RawSyscall(syscall.SYS_PRCTL, setChildSubreaper, on, 0) }
	adopt(1)
	t.Cleanup(func() { adopt(0) })
}
