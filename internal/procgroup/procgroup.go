// Package procgroup runs a child process as the leader of a process group of its own, so that the
// child and its descendants can be ended together. It takes a command that is still to be started,
// and makes a running child that the kernel kills, on Linux, when this process dies. The caller of
// Start waits for the child's end.
package procgroup
