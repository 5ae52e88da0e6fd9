// Package service runs this program where the service manager of Windows has started it: it tells the manager what the
// program does, and makes of a stop of the service the end of a context, as a signal does elsewhere. What the program
// is, and what it does until then, is its caller's.
package service
