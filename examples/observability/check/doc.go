// Package check checks examples/observability: the alerts with the code of promtool, the compose file
// with that of its specification, and all queries on two running replicas. It has only tests.
package check
