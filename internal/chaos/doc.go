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
// so often. The upstream also asks, and says what it does: no answer reaches it twice
// (talkjudge_test.go), a question has one key, the first answer that was acknowledged
// is the one that counts, and no question stays open for longer than its time; partial
// results come in order, without gap or repeat, over all streams of a client, and are
// what the upstream has said (partials_test.go). Failover to a replica of Redis has a
// scenario of its own, in which nothing is asked, because what is promised there depends
// on how it is configured.
//
// The calls, what their clients do and which faults come when are derived from the
// seed alone, so a run can be repeated; how processes interleave cannot be. There
// is nothing in the package but tests and their fixtures: a shorter form runs with
// all other tests.
package chaos
