//go:build !unix

package procgroup

import (
	"errors"
	"os/exec"
)

// Start fails: there are no process groups on this system.
func Start(*exec.Cmd) error { return errors.ErrUnsupported }

// Terminate does nothing, because Start always fails here.
func Terminate(int) {}

// Kill does nothing, because Start always fails here.
func Kill(int) {}

// Wait does nothing, because Start always fails here.
func Wait(*exec.Cmd) string { return "" }

// Reap does nothing, because Start always fails here.
func Reap(int) {}
