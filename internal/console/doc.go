// Package console tests the operator's console as people use it: in a browser, in front of running gateways.
// Its tests are all that there is.
package console
