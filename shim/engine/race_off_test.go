//go:build !race

package engine_test

// raceDetector says that the tests have it, and are several times slower.
const raceDetector = false
