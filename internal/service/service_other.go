//go:build !windows

package service

import (
	"context"
	"io"
)

// Run does nothing: elsewhere a service manager starts programs as anybody does, and stops them by SIGTERM.
func Run(string, func(context.Context, io.Writer) int) (code int, is bool) { return 0, false }
