//go:build !linux

package proc

import (
	"os/exec"
	"syscall"
)

// attributes puts a child into its own process group.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true}
}

func start(cmd *exec.Cmd) error { return cmd.Start() }
