package redisstore

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"taskgate/internal/patience"
	"taskgate/shim"
)

// Rate bounds how many requests a caller may send per second, to all replicas together: they
// count by the clock of Redis, in one key for each caller, which is gone once the caller has
// been quiet for long enough to have its whole burst again.
type Rate struct {
	store    *Store
	interval time.Duration // between two requests at the rate
	burst    int
}

// NewRate allows so many requests per second in the long run, at least one, and burst of them at
// once after a pause. All replicas should agree on both.
func NewRate(s *Store, perSecond, burst int) *Rate {
	perSecond = max(perSecond, 1)
	return &Rate{store: s, interval: (time.Second / time.Duration(perSecond)).Round(time.Microsecond), burst: burst}
}

// Take takes n requests out of what a caller may send. wait is 0, or after how long the same
// requests would be in time; more than a burst never are. An error says that it cannot be known
// just now. It is asked once: a repeat might count twice, and makes a caller wait for no good.
func (r *Rate) Take(ctx context.Context, caller string, n int) (wait time.Duration, err error) {
	ctx, done := patience.Use(ctx)
	defer func() { done(!errors.Is(err, shim.ErrUnavailable)) }()
	a := &argv{} // it waits in line: the client's own queue leaves some waiting for long
	a.addInt(r.interval.Microseconds(), int64(r.burst), int64(n))
	reply, err := rateScript.run(ctx, r.store.writes, []string{r.store.keys.rate(caller)}, a)
	switch {
	case err != nil:
		return 0, wrap("rate", err)
	case reply[0] == codeOK:
		return 0, nil
	case len(reply) < 2:
		return 0, fmt.Errorf("rate: unexpected reply %q", reply)
	}
	us, err := strconv.ParseInt(reply[1], 10, 64)
	return time.Duration(us) * time.Microsecond, err
}
