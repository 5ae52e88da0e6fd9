package redisstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"taskgate/internal/patience"
	"taskgate/internal/work"
	"taskgate/shim"
)

// ErrNotReplicated says that a write is on the master but did not reach as many
// replicas as Options.WaitReplicas asks for in time. It is a shim.ErrUnavailable:
// repeating the operation waits for the replicas again.
var ErrNotReplicated = fmt.Errorf("%w: too few replicas have the write", shim.ErrUnavailable)

// errClosed is what a closed Store answers.
var errClosed = fmt.Errorf("%w: store is closed", shim.ErrUnavailable)

// errAway is the answer to a request while a Redis is known to be away.
var errAway = fmt.Errorf("%w: redis does not answer", shim.ErrUnavailable)

const (
	firstBackoff = 10 * time.Millisecond
	maxBackoff   = 250 * time.Millisecond
)

// doRepeated runs an operation and, while Redis is away, runs it again until RetryFor or
// ctx is over. That is safe for every operation of this package, and for nothing
// else (design.md 0.12).
//
// While the slot of its keys moves to another node of a cluster, it is run again until
// the deadline of ctx: that may take longer, and ends by itself. A caller without a
// deadline is told after RetryFor, as of anything else. So is an adoption, which leaves
// such tasks out and goes on with others.
//
// What a request does is bounded by its patience, and fails at once where Redis is known to
// be away (pulse.go).
func (s *Store) doRepeated(ctx context.Context, op string, f func(context.Context) error) (err error) {
	ctx, done := patience.Use(ctx)
	begun := time.Now()
	defer func() {
		away := errors.Is(err, shim.ErrUnavailable)
		done(!away)
		s.opts.Metrics.Stored(ctx, op, time.Since(begun), away && !errors.Is(err, context.Canceled))
	}()
	give := begun.Add(s.opts.RetryFor)
	until, bounded := ctx.Deadline()
	for wait := firstBackoff; ; wait = min(2*wait, maxBackoff) {
		err := f(ctx)
		if err == nil {
			return nil
		}
		pause := wait/2 + rand.N(wait)
		if (isOutage(err) || errors.Is(err, errAway)) && !errors.Is(err, context.Canceled) {
			reroute(ctx, s.client)
		}
		last := give
		if bounded && op != opAdopt && hasPrefix(err, moving...) {
			last = until
		}
		if !isTransient(err) || time.Now().Add(pause).After(last) || work.Pause(ctx, pause) != nil {
			return wrapError(op, err)
		}
	}
}

// opAdopt is the name of an adoption for do.
const opAdopt = "adopt"

// wrapError names the operation, and says that the store is unavailable where it is.
func wrapError(op string, err error) error {
	switch {
	case errors.Is(err, shim.ErrUnavailable):
		return fmt.Errorf("%s: %w", op, err)
	case errors.Is(err, redis.ErrClosed):
		return fmt.Errorf("%s: %w", op, errClosed)
	case hasPrefix(err, refusals...):
		return fmt.Errorf("%s: %w: redis refuses this user: %w", op, shim.ErrUnavailable, err)
	case hasPrefix(err, "READONLY"):
		return fmt.Errorf("%s: %w: redis is a read-only replica: %w", op, shim.ErrUnavailable, err)
	case hasPrefix(err, "OOM"):
		return fmt.Errorf("%s: %w: redis is full: %w", op, shim.ErrUnavailable, err)
	case isOutage(err):
		return fmt.Errorf("%s: %w: %w", op, shim.ErrUnavailable, err)
	}
	return fmt.Errorf("%s: %w", op, err)
}

// Errors of Redis by their first word. What passes by itself is transient; the
// others last until an operator does something.
var (
	moving     = []string{"TRYAGAIN", "MOVED", "ASK"} // what go-redis does not follow any further
	transients = []string{"LOADING", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "MOVED", "ASK", "BUSY"}
	lasting    = []string{"OOM", "MISCONF", "NOREPLICAS", "ERR max number of clients"}
	wrongType  = "WRONGTYPE"
	refusals   = []string{"WRONGPASS", "NOAUTH", "NOPERM", "ERR invalid password", "ERR AUTH", "ERR Client sent AUTH",
		"ERR Protocol error: unauthenticated"}
)

// isTransient reports whether a repeat in a moment may succeed.
func isTransient(err error) bool {
	if isRedis(err) {
		return hasPrefix(err, transients...)
	}
	return isOutage(err) && !errors.Is(err, context.Canceled)
}

// isOutage reports whether Redis could not be reached, or cannot work now.
func isOutage(err error) bool {
	if isRedis(err) {
		return hasPrefix(err, transients...) || hasPrefix(err, lasting...) || hasPrefix(err, refusals...)
	}
	var network net.Error
	return errors.As(err, &network) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, io.ErrClosedPipe) || errors.Is(err, net.ErrClosed) ||
		errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) ||
		errors.Is(err, redis.ErrPoolTimeout) || errors.Is(err, redis.ErrPoolExhausted) ||
		isClusterState(err)
}

// isRedis reports whether Redis itself answered with this error.
func isRedis(err error) bool {
	var answered redis.Error
	return errors.As(err, &answered)
}

// reasonOf is the first word of the error that Redis answered with, "" if it is none.
func reasonOf(err error) string {
	var answer redis.Error
	if !errors.As(err, &answer) {
		return ""
	}
	word, _, _ := strings.Cut(answer.Error(), " ")
	return word
}

// hasPrefix reports whether Redis answered with an error that begins like this.
func hasPrefix(err error, prefixes ...string) bool {
	var answered redis.Error
	if !errors.As(err, &answered) {
		return false
	}
	for _, p := range prefixes {
		if strings.HasPrefix(answered.Error(), p) {
			return true
		}
	}
	return false
}

// isClusterState recognises what go-redis says, without a type, of a cluster or
// of sentinels that it finds no way into.
func isClusterState(err error) bool {
	text := err.Error()
	return strings.HasPrefix(text, "redis: all sentinels") || strings.HasPrefix(text, "redis: cluster has no nodes") ||
		strings.Contains(text, "cannot load cluster")
}

// logDebug is for what go-redis says.
func logDebug(ctx context.Context, format string, args ...any) {
	if slog.Default().Enabled(ctx, slog.LevelDebug) {
		slog.DebugContext(ctx, "redis client", "message", fmt.Sprintf(format, args...))
	}
}
