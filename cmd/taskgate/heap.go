package main

import (
	"context"
	"log/slog"
	"math"
	"net"
	"net/http"
	"os"
	"runtime/debug"

	"github.com/KimMachineGun/automemlimit/memlimit"

	"taskgate/internal/heads"
	"taskgate/internal/metrics"
)

// The memory for the garbage collector. A gateway keeps little for long, and Go collects when the
// heap has doubled: with a heap of a few MiB that is after every second large result.
const (
	headroom      = 48 << 20 // garbage before it is collected, besides as much as lives
	headroomShare = 8        // it is at most this part of a memory limit
)

// ballast stays untouched, so it takes only addresses. The collector counts it as living, and lets the
// heap grow by as much before it collects.
var ballast []byte

// tuneCollector sets the limit of the garbage collector from that of the container, and gives it
// headroom below the limit. If the operator sets GOMEMLIMIT or GOGC, that counts.
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
		debug.SetMemoryLimit(limit + room) // it includes the ballast
		log.Info("the memory limit of the container is kept to", "GOMEMLIMIT", limit)
	}
}

// memoryLimit is how much memory Go keeps to, without the ballast; 0 for any amount.
func memoryLimit() int64 {
	limit := debug.SetMemoryLimit(-1)
	if limit == math.MaxInt64 {
		return 0
	}
	return limit - int64(len(ballast))
}

// containerLimit is the memory limit of the container. The error is memlimit.ErrNoLimit outside of
// a container.
func containerLimit() (uint64, error) {
	limit, err := memlimit.FromCgroup()
	if err != nil {
		return 0, memlimit.ErrNoLimit
	}
	return limit, nil
}

// The limits of the heads of requests. Unfinished ones have a part of the memory limit; what they have without one is
// their most.
const (
	maxHeaderBytes  = 32 << 10
	maxHeaderFields = 200
	openHeadsShare  = 16
	mostOpenHeads   = 256 << 20
)

// guardHeads has the heads of requests to a server counted before they are read. It returns the guarded listener.
func guardHeads(m *metrics.Metrics, s *http.Server, l net.Listener) net.Listener {
	all := int64(mostOpenHeads)
	if limit := memoryLimit(); limit > 0 {
		all = min(all, limit/openHeadsShare)
	}
	g := heads.New(heads.Limits{Bytes: maxHeaderBytes, Fields: maxHeaderFields, All: all}, func() { m.Refused(context.Background(), "max_header") })
	g.Use(s)
	return g.Listener(l)
}
