// Package check checks the alerts of examples/observability with the code of promtool. Its test is
// all that there is.
package check
