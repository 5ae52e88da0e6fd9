// Package engine is the door of the packages that decide about tasks: a [Shim] turns a synchronous
// call to a server into a task, keeps the task going after its client has left, and says who may
// see it. Calls of clients come in with the operator's policy for the tool; replies, tasks and
// their changes go out.
//
// Start reading at [Shim.Call] (call.go): it begins a run and waits for it. Above the runs, the
// Shim answers those who read, answer or cancel a task (access.go, answer.go), follows tasks for
// readers (follow.go, follower.go), takes a caller back who comes again (reattach.go), adopts the
// tasks of lost replicas (adopt.go), and shows operators all of it (operator.go).
package engine
