// Package importtest keeps the structure of the project as its design says it
// is. Its tests hold the table of which package may import which, where Redis,
// HTTP, the Go SDK and the telemetry SDK may be used at all, the limits on what a
// file and a function may grow to, and that what comments and pages refer to is
// there. There is nothing in it but tests.
package importtest
