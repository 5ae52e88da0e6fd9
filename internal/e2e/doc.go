// Package e2e tests the product from outside: the programs as they are built, each
// a process of its own, with real clients, real servers and a real Redis around
// them. There is nothing in it but tests and their fixtures.
//
// What needs Redis is skipped where there is no redis-server, and what needs Node
// where "make node" has not been run; with CI set in the environment, both are
// failures instead.
package e2e
