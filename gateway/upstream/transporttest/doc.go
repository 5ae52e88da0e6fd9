// Package transporttest is the contract of a transport.Transport, in executable form. In come a [Dial] for each
// transport; out go the failures of [Suite]. The package also has the server of the suite, as
// Streamable HTTP, HTTP+SSE and stdio see it, and what the tests of transports need to send a text.
package transporttest
