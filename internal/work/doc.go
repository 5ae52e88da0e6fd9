// Package work has what goroutines need of each other. A Group counts what runs, so that its
// owner can wait for the end of all of it, and a Background runs what outlives the caller who
// began it. Besides, there are a pause, a signal, and a function run apart; what is done, or
// waited for, is none of the package's business.
package work
