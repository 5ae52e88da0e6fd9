// Package chaos breaks things while clients make thousands of calls, and then
// holds what they saw against what the product promises. Several gateways run as
// processes over one Redis, in front of an upstream that counts how often each
// call is executed; meanwhile gateways are killed, frozen, cut off and replaced,
// and Redis is killed, restarted and put behind a faulty network.
//
//	make chaos
//	CHAOS_SEED=7 CHAOS_CALLS=10000 make chaos
//
// What must hold (judge_test.go) is: a task that was acknowledged ends, in one
// state, which never changes again; it is never unknown before its time is over;
// every result that is read is what the upstream returned for that call; and no
// call is executed twice, unless its tool's policy is recover: retry, and then only
// so often.
//
// There are two upstreams, which ask, and say what they do: a legacy one by requests, and
// a modern one by the results of its calls (rounds_test.go). No answer reaches them twice
// (talkjudge_test.go), nor is a call made again twice with one state; a question has one
// key, the first answer that was acknowledged is the one that counts, and no question
// stays open for longer than its time.
//
// What is shown of a task comes in order, without gap or repeat, over all streams of a
// client, and is what the upstream has said (shown_test.go): partial results on listen
// streams (partials_test.go) and on the GET streams of sessions, which are resumed at any
// gateway (legacy_partials_test.go). What an
// upstream said and a gateway that was killed had not stored may be missing at the end of
// that, never in its middle.
//
// What a client of 2025-11-25 hears that is numbered comes once and in order, or its stream says that messages
// may be missing (counted_test.go).
//
// What clients are told of the gateways themselves is judged, too (told_test.go): while
// things break, new and old clients of all dialects ask for capabilities and tools, and a
// gateway that runs is never without them. In the end no record of a task stands open in
// the store for more than a minute (standing_test.go).
//
// Other scenarios have worlds of their own. Failover to a replica of Redis: nothing is asked,
// because what is promised there depends on how it is configured. A Redis that comes back
// older, empty or after an outage under gateways that all live (comes_back_test.go): its
// short form takes a minute; with -oldest 30s -backs 50 it comes back up to 30 s older,
// empty, and after 20, 40 and 90 s, ten times each. A gateway that dies with
// many tasks, when Redis is far away (orphans_test.go). Questions that programs answer as
// soon as they see them (prompt_test.go). Servers over stdio and HTTP+SSE that are killed
// (processes_test.go). And one principal that floods while the gateways are
// restarted in turn behind a balancer: there, nobody else may notice anything (flood_test.go).
//
// The calls, what their clients do and which faults come when are derived from the
// seed alone, so a run can be repeated; how processes interleave cannot be. There
// is nothing in the package but tests and their fixtures: a shorter form runs with
// all other tests.
package chaos
