package redisstore

import (
	"context"
	"net"
	"reflect"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
	"github.com/redis/go-redis/v9"

	"taskgate/internal/memconn"
	"taskgate/redisstore/interpreter"
)

// embedded is a miniredis in this process, reached over pipes in memory.
//
// miniredis counts time only when told to, and then takes the same amount from every key, even from one that
// was just written. So a ticker tells it the time, at most slack at once, and each expiry is slack longer: a
// key ends on time or a few ticks late, never early. (ClockTTL of miniredis is exact, and looks at every key
// on every access.)
type embedded struct {
	server   *miniredis.Miniredis
	recorder *recorder // nil if everything is lost with the process
	slack    time.Duration
	stop     context.CancelFunc
	loops    sync.WaitGroup
}

// startEmbedded starts a miniredis. If path is set, it loads the data of that folder and records to it.
func startEmbedded(path string, opts Options) (*embedded, error) {
	ctx, stop := context.WithCancel(context.Background())
	e := &embedded{server: miniredis.NewMiniRedis(), slack: 2 * opts.tick, stop: stop}
	if err := e.open(path, opts); err != nil {
		stop()
		e.server.Close()
		return nil, err
	}
	if e.recorder != nil {
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

// open starts the engine, with the data of a folder if path is set.
func (e *embedded) open(path string, opts Options) error {
	conn, err := e.server.Dial() // it starts the engine
	if err != nil {
		return err
	}
	if err := conn.Close(); err != nil {
		return err
	}
	scripts, err := interpreter.New(e.server, sources)
	if err != nil {
		return err
	}
	if path != "" {
		e.recorder, err = openRecorder(e.server, scripts, path, opts)
		return err
	}
	e.server.Server().SetPreHook(func(p *server.Peer, cmd string, args ...string) bool {
		runs := cmd == "EVALSHA" && len(args) > 0 && scripts.Has(args[0])
		if runs {
			p.WriteRaw(scripts.Run(args))
		}
		return runs
	})
	return nil
}

// openStore opens a Store over the miniredis. There may be several.
func (e *embedded) openStore(opts Options) *Store {
	opts.Dialer, opts.slack, opts.recorder = e.dialPipe, e.slack, e.recorder
	return newStore(target{addrs: []string{"embedded:0"}, base: &redis.Options{ClientName: outside}}, opts)
}

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

// forgetVersions empties the map that miniredis keeps for WATCH, which taskgate does not use: a number for
// each key that ever existed (db.keyVersion of v2.40.0). Only this frees that memory: about 100 bytes for
// each deleted key.
func (e *embedded) forgetVersions() {
	if versions := keyVersions(e.server); versions != nil {
		e.server.Lock()
		defer e.server.Unlock()
		clear(*versions)
	}
}

// keyVersions returns that map, or nil if this version of miniredis has no such field.
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

// stopServer ends the miniredis. Data outside of a folder is lost.
func (e *embedded) stopServer() error {
	e.stop()
	e.loops.Wait()
	e.server.Close()
	if e.recorder != nil {
		return e.recorder.journal.Close()
	}
	return nil
}
