package redisstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"taskgate/shim"
)

// ErrNotReplicated says that a write is on the master, and reached fewer replicas in time than
// Options.WaitReplicas asks for. It is a shim.ErrUnavailable: repeating the operation waits for the
// replicas again.
var ErrNotReplicated = fmt.Errorf("%w: too few replicas have the write", shim.ErrUnavailable)

// errClosed is the error of a closed Store.
var errClosed = fmt.Errorf("%w: store is closed", shim.ErrUnavailable)

// errAway is the answer to a request while a Redis is known to be away.
var errAway = fmt.Errorf("%w: redis does not answer", shim.ErrUnavailable)

const (
	firstBackoff = 10 * time.Millisecond
	maxBackoff   = 250 * time.Millisecond
)

// opAdopt is the name of an adoption for doRepeated.
const opAdopt = "adopt"

// wrapError adds the name of the operation, and shim.ErrUnavailable unless the error is an answer about what
// was asked: after an unknown error a write may have taken place, and the operation may be repeated.
func wrapError(op string, err error) error {
	switch {
	case errors.Is(err, shim.ErrUnavailable), isAnswer(err):
		return fmt.Errorf("%s: %w", op, err)
	case errors.Is(err, redis.ErrClosed):
		return fmt.Errorf("%s: %w", op, errClosed)
	case hasPrefix(err, refusals...):
		return fmt.Errorf("%s: %w: redis refuses this user: %w", op, shim.ErrUnavailable, err)
	case hasPrefix(err, "READONLY"):
		return fmt.Errorf("%s: %w: redis is a read-only replica: %w", op, shim.ErrUnavailable, err)
	case hasPrefix(err, "OOM"):
		return fmt.Errorf("%s: %w: redis is full: %w", op, shim.ErrUnavailable, err)
	}
	return fmt.Errorf("%s: %w: %w", op, shim.ErrUnavailable, err)
}

// Errors of Redis by their first word. Transient errors pass by themselves; lasting ones need an
// operator. With each of them Redis has refused the command.
var (
	moving     = []string{"TRYAGAIN", "MOVED", "ASK"} // beyond the redirections that go-redis follows
	transients = []string{"LOADING", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "MOVED", "ASK", "BUSY"}
	lasting    = []string{"OOM", "MISCONF", "NOREPLICAS", "ERR max number of clients"}
	wrongType  = "WRONGTYPE"
	refusals   = []string{"WRONGPASS", "NOAUTH", "NOPERM", "ERR invalid password", "ERR AUTH", "ERR Client sent AUTH",
		"ERR Protocol error: unauthenticated"}
)

// answers are the errors that say what is the case with a record or a list.
var answers = []error{shim.ErrNotFound, shim.ErrFinal, shim.ErrLeaseLost, shim.ErrPosition, shim.ErrCursor, errNewer, errPacked, redis.Nil}

// isAnswer reports whether an error answers what was asked: it is a matter of one record, or of a limit.
func isAnswer(err error) bool {
	if _, ok := errors.AsType[*unreadableError](err); ok {
		return true
	}
	if _, ok := errors.AsType[*shim.BusyError](err); ok {
		return true
	}
	return hasPrefix(err, wrongType) || slices.ContainsFunc(answers, func(a error) bool { return errors.Is(err, a) })
}

// isRefused reports whether Redis has refused to execute a command.
func isRefused(err error) bool {
	return hasPrefix(err, transients...) || hasPrefix(err, lasting...) || hasPrefix(err, refusals...)
}

// isTransient reports whether a repeat in a moment may succeed. Of what Redis sends, some errors pass soon; the
// caller waits for the others if it has the time. Any other error passes, unless this package made it.
func isTransient(err error) bool {
	if isRedis(err) {
		return hasPrefix(err, transients...)
	}
	return !isAnswer(err) && !errors.Is(err, shim.ErrUnavailable) && !errors.Is(err, context.Canceled) && !errors.Is(err, redis.ErrClosed)
}

// isUnknown reports whether an error is in no list of this package: something that stands before Redis may
// have its own words.
func isUnknown(err error) bool {
	if isRedis(err) {
		return !isRefused(err) && !isAnswer(err)
	}
	var network net.Error
	return !isAnswer(err) && !errors.As(err, &network) && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) &&
		!errors.Is(err, io.ErrClosedPipe) && !errors.Is(err, net.ErrClosed) &&
		!errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled) &&
		!errors.Is(err, redis.ErrPoolTimeout) && !errors.Is(err, redis.ErrPoolExhausted) && !errors.Is(err, redis.ErrClosed) &&
		!errors.Is(err, shim.ErrUnavailable) && !isClusterState(err)
}

// isRedis reports whether Redis itself answered with this error.
func isRedis(err error) bool {
	_, answered := errors.AsType[redis.Error](err)
	return answered
}

// reasonOf is the first word of an error that Redis answered with; "" for any other error.
func reasonOf(err error) string {
	answer, ok := errors.AsType[redis.Error](err)
	if !ok {
		return ""
	}
	word, _, _ := strings.Cut(answer.Error(), " ")
	return word
}

// hasPrefix reports whether Redis answered with an error that begins like this.
func hasPrefix(err error, prefixes ...string) bool {
	answer, ok := errors.AsType[redis.Error](err)
	return ok && slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(answer.Error(), p) })
}

// isClusterState recognises the untyped errors of go-redis for a cluster or sentinels that it fails
// to enter.
func isClusterState(err error) bool {
	text := err.Error()
	return strings.HasPrefix(text, "redis: all sentinels") || strings.HasPrefix(text, "redis: cluster has no nodes") ||
		strings.Contains(text, "cannot load cluster")
}

// reroute has a cluster client read anew which node has which slot. By itself the client does so
// when a node redirects it, and else every ten seconds: it ignores a node that is down, and a
// connection that was taken out of the pool.
func reroute(ctx context.Context, client redis.UniversalClient) {
	if c, ok := client.(*redis.ClusterClient); ok {
		c.ReloadState(ctx)
	}
}

// unknownErrors logs errors that are in no list, each once in a while with its words. The zero value is ready.
type unknownErrors struct {
	mu     sync.Mutex
	logged map[string]time.Time // by how they begin
}

const (
	// unknownEvery is how long such an error is then not logged again, and mostUnknown how many are remembered.
	unknownEvery = 10 * time.Minute
	mostUnknown  = 100
	// knownBy is how many bytes of the text tell one from another; what follows may name a key.
	knownBy = 30
)

// logError logs an error of an operation, if it is unknown and has not been logged lately.
func (u *unknownErrors) logError(log *slog.Logger, op string, err error) {
	if !isUnknown(err) {
		return
	}
	kind := err.Error()
	kind = kind[:min(len(kind), knownBy)]
	now := time.Now()
	u.mu.Lock()
	at, known := u.logged[kind]
	again := !known || now.Sub(at) >= unknownEvery
	if u.logged == nil || len(u.logged) >= mostUnknown {
		u.logged = make(map[string]time.Time)
	}
	if again {
		u.logged[kind] = now
	}
	u.mu.Unlock()
	if again {
		log.Warn("redis answers with an unknown error; what it was asked is repeated", "operation", op, "err", err)
	}
}
