package stdio

import (
	"syscall"
	"testing"
)

// TestGroupLeavesNoZombies: what a process has started is not left as a zombie where this process adopts orphans, as
// the first one of a container does.
func TestGroupLeavesNoZombies(t *testing.T) {
	adoptOrphans(t)
	TestGroupEndsWithProcess(t)
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
