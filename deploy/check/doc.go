// Package check checks what deploy builds and has: the archives and packages, the service as the deb
// installs it, the compose file and the chart, and the balancers of examples. Its tests are all that there is.
package check
