//go:build unix && !linux

package procgroup

import (
	"os/exec"
	"syscall"
)

func start(cmd *exec.Cmd) error {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return cmd.Start()
}
