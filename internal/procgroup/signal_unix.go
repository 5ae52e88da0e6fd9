//go:build unix

package procgroup

import (
	"os/exec"
	"strconv"
	"syscall"
)

// Terminate asks every process of the group that pid leads to end (SIGTERM).
func Terminate(pid int) { _ = syscall.Kill(-pid, syscall.SIGTERM) } // the group may be gone

// Kill ends every process of the group that pid leads, at once (SIGKILL). The group outlives its
// leader while it has other members.
func Kill(pid int) { _ = syscall.Kill(-pid, syscall.SIGKILL) } // as above

// Wait waits for the end of a child that Start has started, and returns how it ended: "exit status
// 1". It also reaps other members of the group that have become children of this process (see
// Reap). Only Wait may wait for the child, and cmd must not be used afterwards.
func Wait(cmd *exec.Cmd) string {
	pid := cmd.Process.Pid
	defer cmd.Process.Release()
	for who := -pid; ; {
		var status syscall.WaitStatus
		switch ended, err := syscall.Wait4(who, &status, 0, nil); {
		case err == syscall.EINTR:
		case err != nil && who == pid:
			return err.Error()
		case err != nil: // the child has left its group
			who = pid
		case ended != pid:
		case status.Signaled():
			return "signal: " + status.Signal().String()
		default:
			return "exit status " + strconv.Itoa(status.ExitStatus())
		}
	}
}

// Reap reaps all members of a killed group that have become children of this process, as they would stay
// zombies. They become its children if this process adopts orphans, as the first process of a container does.
// The caller has waited for the leader before.
func Reap(pid int) {
	for {
		if _, err := syscall.Wait4(-pid, nil, 0, nil); err != nil && err != syscall.EINTR {
			return // ECHILD: there is none left
		}
	}
}
