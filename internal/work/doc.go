// Package work has tools for goroutines. A Group counts running work, so that its owner can wait
// for the end of all of it. A Background runs work that outlives its caller. There are also a
// pause, a signal, and a function that runs apart. The package leaves open what the work is.
package work
