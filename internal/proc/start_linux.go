package proc

import (
	"os/exec"
	"runtime"
	"sync"
	"syscall"
)

// attributes puts a child into its own process group and has the kernel kill it
// when its parent dies.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

type startRequest struct {
	cmd  *exec.Cmd
	done chan<- error
}

// starter is one operating system thread for the life of the process, on which
// all children are started: for the kernel, the parent whose death is watched is
// a thread, and those of the Go runtime come and go.
var starter = sync.OnceValue(func() chan<- startRequest {
	requests := make(chan startRequest)
	go func() {
		runtime.LockOSThread()
		for r := range requests {
			r.done <- r.cmd.Start()
		}
	}()
	return requests
})

func start(cmd *exec.Cmd) error {
	done := make(chan error)
	starter() <- startRequest{cmd, done}
	return <-done
}
