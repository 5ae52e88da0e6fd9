package proc

import "syscall"

// There are no such signals: to send one fails.
const (
	Freeze = syscall.Signal(-1)
	Thaw   = syscall.Signal(-1)
)
