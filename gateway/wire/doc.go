// Package wire is how an answer of the gateway looks over HTTP, in either era. It takes a request,
// and its result or error with the messages ahead of it. It writes JSON or an event stream
// ([Exchange]), the code and status of an error ([FailureOf], the only table of them), and the span
// and duration of the request ([Telemetry]).
package wire
