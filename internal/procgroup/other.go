//go:build !unix

package procgroup

import (
	"errors"
	"os/exec"
)

// Start fails: there are no process groups on this system.
func Start(*exec.Cmd) error { return errors.ErrUnsupported }

// Terminate does nothing: nothing can have been started.
func Terminate(int) {}

// Kill does nothing: nothing can have been started.
func Kill(int) {}

// Wait does nothing: nothing can have been started.
func Wait(*exec.Cmd) string { return "" }

// Reap does nothing: nothing can have been started.
func Reap(int) {}
