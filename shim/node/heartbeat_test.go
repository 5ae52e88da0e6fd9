package node_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"taskgate/shim"
	"taskgate/shim/node"

	"github.com/google/go-cmp/cmp"
)

// numb is a store whose Beat fails with what it holds.
type numb struct {
	shim.Store
	failure atomic.Pointer[error]
}

func (n *numb) Beat(context.Context, shim.Replica, time.Duration) error { return *n.failure.Load() }

// Why there is no heartbeat is logged once, until there is one or the reason is another, and not with every beat.
func TestMissedHeartbeatsAreLoggedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		words := slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		}}
		store := &numb{}
		heart := node.NewHeart(store, "a", 6*time.Second, slog.New(slog.NewTextHandler(&log, &words)))
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan struct{})
		refused, silent, well := errors.New("refused"), errors.New("silent"), error(nil)
		store.failure.Store(&well)
		go func() { defer close(ended); heart.Run(ctx) }()
		for _, failure := range []*error{&refused, &silent, &well, &silent, &well} {
			<-time.After(time.Minute)
			store.failure.Store(failure)
		}
		<-time.After(time.Minute)
		stop()
		<-ended
		want := `level=WARN msg="no heartbeat: the store is unavailable" err=refused
level=WARN msg="no heartbeat: the store is unavailable" err=silent
level=INFO msg="the store takes heartbeats again"
level=WARN msg="no heartbeat: the store is unavailable" err=silent
level=INFO msg="the store takes heartbeats again"
`
		if diff := cmp.Diff(want, log.String()); diff != "" {
			t.Errorf("log (-want +got):\n%s", diff)
		}
	})
}
