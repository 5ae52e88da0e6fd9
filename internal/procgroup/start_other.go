//go:build unix && !linux

package procgroup

import (
	"os/exec"
	"syscall"
)

// Start starts a command as the leader of a process group.
func Start(cmd *exec.Cmd) error {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return cmd.Start()
}
