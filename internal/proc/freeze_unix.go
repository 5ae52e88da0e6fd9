//go:build unix

package redistest

import "syscall"

// Signals that stop a process where it is, and let it go on.
const (
	freeze = syscall.SIGSTOP
	thaw   = syscall.SIGCONT
)
