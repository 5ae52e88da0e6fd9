// Package node is what one replica has besides its calls: the store with the patience of those
// who wait for it ([Core]), its heartbeat ([Heart]), its life, which ends in stages ([Life]), and,
// for each server, the slots and limits of its calls and the grace that its tools have shown
// ([Served]). It marks the ids of tasks, to recognise one whose record is lost ([Marker]), keeps
// endings that a failover may forget ([Outcomes]), and writes spans and log records ([Observer]).
//
// It knows records and tasks, and no call: what it keeps of a run in [Runs] is a pointer.
package node
