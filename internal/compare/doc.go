// Command compare measures taskgate beside what people would use in its place: the same clients and the same server,
// directly, through a bare proxy, through taskgate with its defaults, and through every peer that can be installed.
// "make compare" runs it.
//
//	compare install                     installs the peers
//	compare run [-peers a,b] ROW...     measures rows: silence, survive, through, cost, protocol, tasks
//	compare page                        writes docs/comparison.md and its pictures from the results
//
// What it finds is in results/*.json, with the machine, its load, the versions and the date. The page is written from
// those files alone.
package main
