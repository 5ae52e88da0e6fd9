//go:build !race

package chaos

// raceFlags build the gateway with the race detector if the tests have it.
var raceFlags []string
