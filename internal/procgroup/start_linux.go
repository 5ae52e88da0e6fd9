package procgroup

import (
	"os/exec"
	"runtime"
	"sync"
	"syscall"
)

type startRequest struct {
	cmd  *exec.Cmd
	done chan<- error
}

// starter is one operating system thread for the life of the process, which starts all children:
// the kernel watches the death of the thread that is the parent, and the threads of the Go runtime
// come and go.
var starter = sync.OnceValue(func() chan<- startRequest {
	requests := make(chan startRequest)
	go serve(requests)
	return requests
})

// serve starts children. It and its thread last forever.
func serve(requests <-chan startRequest) {
	runtime.LockOSThread()
	for r := range requests {
		r.done <- r.cmd.Start()
	}
}

func start(cmd *exec.Cmd) error {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	done := make(chan error)
	starter() <- startRequest{cmd, done}
	return <-done
}
