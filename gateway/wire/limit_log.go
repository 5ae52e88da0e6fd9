package wire

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// limitAgain is the time between two lines of the log about one limit.
const limitAgain = time.Minute

// limitLog tells the operator of limits that are near, or refuse clients: of each limit and reason once a minute.
// Its keys are those of the configuration.
type limitLog struct {
	log *slog.Logger

	mu   sync.Mutex
	said map[[2]string]*limitSaid
}

// limitSaid is what was logged of one limit and reason.
type limitSaid struct {
	at    time.Time
	since int // how often it happened after that
}

// note logs what happens at a limit, unless it was logged just now.
func (l *limitLog) note(ctx context.Context, text, key string) {
	l.mu.Lock()
	of := l.said[[2]string{text, key}]
	if of == nil {
		of = &limitSaid{}
		l.said[[2]string{text, key}] = of
	}
	of.since++
	times := of.since
	if time.Since(of.at) < limitAgain {
		times = 0
	} else {
		*of = limitSaid{at: time.Now()}
	}
	l.mu.Unlock()
	if times > 0 {
		l.log.WarnContext(ctx, text, "limit", key, "times", times)
	}
}
