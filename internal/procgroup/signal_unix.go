//go:build unix

package procgroup

import "syscall"

// Terminate asks every process of the group that pid leads to end (SIGTERM).
func Terminate(pid int) { _ = syscall.Kill(-pid, syscall.SIGTERM) } // the group may be gone

// Kill ends every process of the group that pid leads, at once (SIGKILL). The group outlives
// its leader while any member of it is left.
func Kill(pid int) { _ = syscall.Kill(-pid, syscall.SIGKILL) } // as above

// Reap takes note of the end of all members of a killed group that have become children of
// this process, so that none is left as a zombie. They have where this process adopts
// orphans, as the first process of a container does. The leader has been waited for before.
func Reap(pid int) {
	for {
		if _, err := syscall.Wait4(-pid, nil, 0, nil); err != nil && err != syscall.EINTR {
			return // ECHILD: there is none (any more)
		}
	}
}
