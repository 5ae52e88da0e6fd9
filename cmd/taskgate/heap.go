package main

import (
	"log/slog"
	"math"
	"os"
	"runtime/debug"

	"github.com/KimMachineGun/automemlimit/memlimit"
)

// How much memory the garbage collector is given. A gateway has little that lives for long,
// and Go collects as soon as the heap has doubled: with a heap of a few MiB that is after each
// second large result.
const (
	headroom      = 48 << 20 // what may be garbage before it is collected, besides as much as lives
	headroomShare = 8        // it is at most this part of a memory limit
)

// ballast is never touched, so that it takes no memory. The collector counts it as living,
// and lets the heap grow by as much before it collects.
var ballast []byte

// tuneCollector gives the garbage collector a limit from that of the container, and headroom
// below it. Who sets GOMEMLIMIT or GOGC has decided for himself.
func tuneCollector(container memlimit.Provider, log *slog.Logger) {
	limit, err := memlimit.Set(memlimit.WithProvider(container), memlimit.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		log.Warn("GOMEMLIMIT could not be set to the memory limit of the container", "err", err)
	}
	_, chosen := os.LookupEnv("GOGC")
	if _, limited := os.LookupEnv("GOMEMLIMIT"); chosen || limited {
		return
	}
	room := min(headroom, limit/headroomShare)
	ballast = make([]byte, room)
	if limit < math.MaxInt64 {
		debug.SetMemoryLimit(limit + room) // it counts the ballast as well
		log.Info("the memory limit of the container is kept to", "GOMEMLIMIT", limit)
	}
}

// containerLimit is the memory limit of the container. A system without containers, or a
// process outside of one, has none.
func containerLimit() (uint64, error) {
	limit, err := memlimit.FromCgroup()
	if err != nil {
		return 0, memlimit.ErrNoLimit
	}
	return limit, nil
}
