//go:build unix

package procgroup

import (
	"os/exec"
	"strconv"
	"syscall"
)

// Group is a child that was started, with its descendants: a process group.
type Group struct {
	cmd *exec.Cmd
	pid int // which cmd forgets when it is released
}

// Start starts a command as the leader of a process group. On Linux the kernel kills the leader when this process dies.
func Start(cmd *exec.Cmd) (*Group, error) {
	if err := start(cmd); err != nil {
		return nil, err
	}
	return &Group{cmd, cmd.Process.Pid}, nil
}

// Terminate asks every process of the group to end (SIGTERM).
func (g *Group) Terminate() { _ = syscall.Kill(-g.pid, syscall.SIGTERM) } // the group may be gone

// Kill ends every process of the group at once (SIGKILL). The group outlives its leader while it has other members.
func (g *Group) Kill() { _ = syscall.Kill(-g.pid, syscall.SIGKILL) } // as above

// Wait waits for the end of the child, and returns how it ended: "exit status 1". It also reaps other members of
// the group that have become children of this process (see Reap). Whoever calls it does not wait for the command.
func (g *Group) Wait() string {
	defer g.cmd.Process.Release()
	for who := -g.pid; ; {
		var status syscall.WaitStatus
		switch ended, err := syscall.Wait4(who, &status, 0, nil); {
		case err == syscall.EINTR:
		case err != nil && who == g.pid:
			return err.Error()
		case err != nil: // the child has left its group
			who = g.pid
		case ended != g.pid:
		case status.Signaled():
			return "signal: " + status.Signal().String()
		default:
			return "exit status " + strconv.Itoa(status.ExitStatus())
		}
	}
}

// Reap reaps all members of a killed group that have become children of this process, as they would stay
// zombies. They become its children if this process adopts orphans, as the first process of a container does.
// The caller has waited for the child before.
func (g *Group) Reap() {
	for {
		if _, err := syscall.Wait4(-g.pid, nil, 0, nil); err != nil && err != syscall.EINTR {
			return // ECHILD: there is none left
		}
	}
}
