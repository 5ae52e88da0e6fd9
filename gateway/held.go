package gateway

import "taskgate/shim"

// Held is what a client has at this replica.
type Held struct{ Sessions, Streams, Calls int }

// Held returns what each share has. The sessions of callers without an owner count together, under shim.Share{}.
func (g *Gateway) Held() map[shim.Share]Held {
	all := make(map[shim.Share]Held)
	add := func(from map[shim.Share]int, change func(h *Held, n int)) {
		for share, n := range from {
			h := all[share]
			change(&h, n)
			all[share] = h
		}
	}
	sessions := make(map[shim.Share]int)
	for owner, n := range g.sessions.Owners() {
		sessions[shim.Share{Owner: owner}] = n
	}
	add(sessions, func(h *Held, n int) { h.Sessions = n })
	add(g.streams.Shares(), func(h *Held, n int) { h.Streams = n })
	add(g.calls.Shares(), func(h *Held, n int) { h.Calls = n })
	return all
}

// Open returns how many sessions have something going on at this replica, and how many streams are open.
func (g *Gateway) Open() (sessions, streams int) { return g.sessions.Count(), g.streams.Count() }
