package redistest

import "syscall"

// There is no such signal, and no Redis.
const (
	freeze = syscall.Signal(-1)
	thaw   = syscall.Signal(-1)
)
