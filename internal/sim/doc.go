// Package sim is a deployment in one process and in virtual time, under faults that come from a seed: replicas of the
// gateway, their store, servers, clients, and the network between them. A judge keeps the history of each call and
// holds it against what the product promises. docs/design/simulator.md says what is simulated, and what is not.
//
// The package knows the product only as a Program, which its tests give it.
package sim
