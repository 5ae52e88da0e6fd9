package redisstore

import (
	"context"
	"net"
	"reflect"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"taskgate/internal/memconn"
)

// embedded is a miniredis in this process, reached over pipes in memory.
//
// miniredis counts time only when told to, and then takes the same from every
// key, also from one that was written just before. So a ticker tells it, never of
// more than slack at once, and slack is added to each expiry: a key never ends
// early, and a few ticks late. (Its ClockTTL is exact, and looks at every key on
// every access.)
type embedded struct {
	server   *miniredis.Miniredis
	recorder *recorder // nil where everything is lost with the process
	slack    time.Duration
	stop     context.CancelFunc
	loops    sync.WaitGroup
}

// startEmbedded starts it, with what the folder has that a path names, if one does.
func startEmbedded(path string, opts Options) (*embedded, error) {
	ctx, stop := context.WithCancel(context.Background())
	e := &embedded{server: miniredis.NewMiniRedis(), slack: 2 * opts.tick, stop: stop}
	if path != "" {
		var err error
		if e.recorder, err = openRecorder(e.server, path, opts); err != nil {
			stop()
			e.server.Close()
			return nil, err
		}
		e.loops.Go(func() { e.recorder.rewriteWhenDue(ctx) })
	}
	if opts.ClockTTL {
		e.slack = 0
		e.server.ClockTTL(true)
		return e, nil
	}
	e.loops.Go(func() { e.countTime(ctx, opts.tick) })
	return e, nil
}

// openStore is a Store over it. There may be several.
func (e *embedded) openStore(opts Options) *Store {
	opts.Dialer, opts.slack, opts.recorder = e.dialPipe, e.slack, e.recorder
	return newStore(target{addrs: []string{"embedded:0"}, base: &redis.Options{ClientName: outside}}, opts)
}

// countTime counts time until ctx ends.
func (e *embedded) countTime(ctx context.Context, tick time.Duration) {
	t, minute := time.NewTicker(tick), time.NewTicker(time.Minute)
	defer t.Stop()
	defer minute.Stop()
	for last := time.Now(); ; {
		select {
		case <-ctx.Done():
			return
		case <-minute.C:
			e.forgetVersions()
		case <-t.C:
			now := time.Now()
			e.server.FastForward(min(now.Sub(last), e.slack))
			last = now
		}
	}
}

// forgetVersions empties what miniredis keeps for WATCH, which nobody uses: a number for each key that there ever was
// (db.keyVersion of v2.40.0). There is no other way to have that memory back: about 100 bytes for each key that is gone.
func (e *embedded) forgetVersions() {
	if versions := keyVersions(e.server); versions != nil {
		e.server.Lock()
		defer e.server.Unlock()
		clear(*versions)
	}
}

// keyVersions is where miniredis has them, nil where a version of it has them elsewhere.
func keyVersions(m *miniredis.Miniredis) *map[string]uint {
	field := reflect.ValueOf(m.DB(0)).Elem().FieldByName("keyVersion")
	if !field.IsValid() || field.Type() != reflect.TypeFor[map[string]uint]() {
		return nil
	}
	return (*map[string]uint)(field.Addr().UnsafePointer())
}

// dialPipe is a redis.Options.Dialer.
func (e *embedded) dialPipe(context.Context, string, string) (net.Conn, error) {
	c, err := e.server.Dial()
	if err != nil {
		return nil, err
	}
	return memconn.New(c), nil
}

// stopServer ends it, and with it everything stored that is in no folder.
func (e *embedded) stopServer() error {
	e.stop()
	e.loops.Wait()
	e.server.Close()
	if e.recorder != nil {
		return e.recorder.journal.Close()
	}
	return nil
}
