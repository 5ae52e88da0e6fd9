//go:build !unix

package procgroup

import (
	"errors"
	"os/exec"
)

// Start fails: there are no process groups on this system.
func Start(*exec.Cmd) error { return errors.ErrUnsupported }

// Terminate does nothing, as Start always fails.
func Terminate(int) {}

// Kill does nothing, as Start always fails.
func Kill(int) {}

// Wait does nothing, as Start always fails.
func Wait(*exec.Cmd) string { return "" }

// Reap does nothing, as Start always fails.
func Reap(int) {}
