// Package check checks examples/observability: the alerts with the code of promtool, the compose file
// with that of its specification, and all queries on two replicas that really run. Its tests are all
// that there is.
package check
