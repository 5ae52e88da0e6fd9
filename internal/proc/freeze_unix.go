//go:build unix

package proc

import "syscall"

// Signals that stop a process where it is, and let it go on.
const (
	Freeze = syscall.SIGSTOP
	Thaw   = syscall.SIGCONT
)
