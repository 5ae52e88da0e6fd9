// Package procgroup runs a child process as the leader of a process group of its own, so
// that the child and what it has started can be ended together. In comes a command that has
// not been started; out goes a running child that the kernel kills, on Linux, when this
// process dies. Whoever starts a child waits for its end.
package procgroup
