//go:build race

package main

// raced says that the tests have the race detector, which takes long to look at many bytes.
const raced = true
