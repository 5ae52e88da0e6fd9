// Package wire is how an answer of the gateway looks over HTTP, in either era. In come a
// request, and what it is answered with: a result, an error, messages ahead of them. Out go
// JSON or an event stream ([Exchange]), the code and status of an error ([FailureOf], the
// only table of them), and the span and duration of the request ([Telemetry]).
package wire
