// Package procgroup runs a child process so that it and its descendants can be ended together: as the leader
// of a process group on Unix, in a job object on Windows. It takes a command that is still to be started, and makes a
// running child that the kernel kills, on Linux and Windows, when this process dies. The caller of Start waits
// for the child's end.
package procgroup
