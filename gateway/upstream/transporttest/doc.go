// Package transporttest is the contract of a transport towards servers, in executable form:
// what an http.RoundTripper that carries the requests of Streamable HTTP has to keep, whatever
// it is made of. In come a [Dial] for each transport; out go the failures of [Suite]. The
// package also has the server of the suite, as Streamable HTTP, HTTP+SSE and stdio see it.
package transporttest
