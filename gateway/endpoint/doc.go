// Package endpoint is one upstream as both eras see it. In come its configuration and the ways
// to it, once, and then questions of the handlers: what this upstream offers, how its tools
// are listed, what the gateway's own tool answers. Out come those answers; what a client of one
// era alone sees is in the handler of that era.
package endpoint
