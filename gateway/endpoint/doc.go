// Package endpoint is one upstream as both eras see it. It gets the configuration and the client of
// the upstream once, and then answers the handlers: what this upstream offers, how its tools are
// listed, what the gateway's own tool answers. The handler of an era adds what only clients of that
// era see.
package endpoint
