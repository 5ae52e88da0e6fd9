package redisstore

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"taskgate/internal/work"
)

// hub is the one subscriber connection of a Store, and the fan-out from it to the watchers. A channel is
// subscribed while it has a watcher.
//
// Two goroutines serve it, however much is watched. The writer (serveConnection) sends one SUBSCRIBE or
// UNSUBSCRIBE at a time, for all channels that have gathered meanwhile, and waits until Redis has confirmed
// it. The reader (readConnection) only takes messages and marks the watchers: it never waits for a watcher or
// for the writer, because a reader that stops reading stops a Redis in the same process.
type hub struct {
	client    redis.UniversalClient
	log       *slog.Logger
	interval  time.Duration // between probes
	patience  time.Duration // how long a probe may take to come back; checked when the next is due
	timeout   time.Duration // for a confirmation
	keys      keys
	goodbyes  string                // channel of the goodbyes
	repeats   string                // channel of the news of calls that may be picked up
	looks     func(context.Context) // is called when a connection works, and each lookEvery while it does
	lookEvery time.Duration

	ctx     context.Context
	stop    context.CancelFunc
	started sync.Once
	done    sync.WaitGroup
	kick    chan struct{} // there is work for the writer

	mu        sync.Mutex
	topics    map[string]*topic
	dirty     map[string]struct{} // channels whose topic the writer has to look at
	awaited   int                 // confirmations outstanding
	confirmed chan struct{}       // gets a value when all have come
	probe     string              // channel of the probes of the present connection
	heard     bool                // the last probe came back
}

// topic is a channel. It is on when Redis has confirmed the subscription on the present connection. All
// fields belong to hub.mu.
type topic struct {
	watchers []*watcher
	on       bool
	busy     bool // a command of the writer is on its way
}

// errDeaf says that a connection works but delivers no events.
var errDeaf = errors.New("subscription does not deliver")

// newHub makes the hub of a client. Once a channel is watched, it tests the connection at each interval.
func newHub(client redis.UniversalClient, log *slog.Logger, k keys, interval time.Duration) *hub {
	ctx, stop := context.WithCancel(context.Background())
	return &hub{
		client: client, log: log, timeout: 10 * time.Second, interval: interval, patience: interval / 2,
		keys: k, goodbyes: k.goodbyes(), repeats: k.repeatNews(),
		ctx: ctx, stop: stop, kick: make(chan struct{}, 1),
		topics: map[string]*topic{}, dirty: map[string]struct{}{}, confirmed: make(chan struct{}, 1),
	}
}

// endPatience is how long endWatches waits for the goroutines: one may wait for the greeting of a frozen
// Redis, and go-redis continues that until its own timeout.
const endPatience = time.Second

// endWatches ends all watches.
func (h *hub) endWatches() {
	h.mu.Lock()
	h.stop()
	for _, t := range h.topics {
		for _, w := range t.watchers {
			w.signal()
		}
	}
	h.mu.Unlock()
	h.started.Do(func() {}) // from now on it cannot start
	ended := make(chan struct{})
	go func() {
		h.done.Wait()
		close(ended)
	}()
	_ = work.PauseFor(context.Background(), ended, endPatience)
}

// keepSession keeps a connection going until the hub is closed. It logs the loss of the connection once, and
// again when Redis names another reason: a broken connection may be followed by a Redis that refuses the next
// one, which only an operator can change.
func (h *hub) keepSession() {
	wait, away, reason := firstBackoff, false, ""
	up := func() {
		if away {
			h.log.Info("subscribed to redis again")
		}
		wait, away, reason = firstBackoff, false, ""
	}
	for h.ctx.Err() == nil {
		err := h.serveConnection(up)
		h.noteLost()
		if h.ctx.Err() != nil {
			return
		}
		if word := reasonOf(err); !away || word != "" && word != reason {
			reason = word
			h.log.Warn("lost the subscription to redis; events come late until it is back", "err", err)
		}
		away = true
		reroute(h.ctx, h.client)
		_ = work.Pause(h.ctx, wait)
		wait = min(2*wait, 8*maxBackoff)
	}
}

// serveConnection serves one connection; it calls up once that works. In a cluster the first channel chooses
// the node, and every node gets all messages. So each connection has a probe of its own, and the next
// connection leads to another node if this one is gone.
func (h *hub) serveConnection(up func()) error {
	probe := h.keys.probe(rand.Text())
	h.mu.Lock()
	h.probe = probe
	h.mu.Unlock()
	ps := h.client.Subscribe(h.ctx)
	broken, ended := make(chan error, 1), make(chan struct{})
	h.done.Go(func() {
		defer close(ended)
		broken <- h.readConnection(ps)
	})
	defer func() { // its messages end before the next connection begins
		_ = ps.Close()
		<-ended
	}()
	if err := h.sendCommand(ps.Subscribe, []string{probe}, broken); err != nil {
		return err
	}
	up()
	h.looks(h.ctx)
	tick, look := time.NewTicker(h.interval), time.NewTicker(h.lookEvery)
	defer tick.Stop()
	defer look.Stop()
	for probed := (time.Time{}); ; {
		if err := h.syncChannels(ps, broken); err != nil {
			return err
		}
		// The begin or end of a watch wakes it, and a broken connection. A probe that fails to come back
		// finds a silently dead connection, within two intervals.
		select {
		case <-h.ctx.Done():
			return h.ctx.Err()
		case err := <-broken:
			return err
		case <-h.kick:
		case <-look.C:
			h.looks(h.ctx)
		case <-tick.C:
			switch {
			case probed.IsZero() || h.wasHeard():
				probed = time.Time{}
				if now := time.Now(); h.client.Publish(h.ctx, probe, "").Err() == nil {
					probed = now
				}
			case time.Since(probed) >= h.patience:
				return errDeaf
			}
		}
	}
}

// wasHeard reports whether the last probe has come back, and expects another.
func (h *hub) wasHeard() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	heard := h.heard
	h.heard = false
	return heard
}

// syncChannels subscribes and unsubscribes until the connection has exactly the watched channels.
func (h *hub) syncChannels(ps *redis.PubSub, broken <-chan error) error {
	for {
		add, drop := h.dueChannels()
		if len(add)+len(drop) == 0 {
			return nil
		}
		if len(add) > 0 {
			if err := h.sendCommand(ps.Subscribe, add, broken); err != nil {
				return err
			}
		}
		if len(drop) > 0 {
			if err := h.sendCommand(ps.Unsubscribe, drop, broken); err != nil {
				return err
			}
		}
	}
}

// maxChannels bounds the channels in one command.
const maxChannels = 1024

// dueChannels returns the channels to subscribe and to leave.
func (h *hub) dueChannels() (add, drop []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for c := range h.dirty {
		if len(add)+len(drop) == maxChannels {
			break
		}
		delete(h.dirty, c)
		t := h.topics[c]
		switch {
		case t == nil || t.busy:
		case len(t.watchers) > 0 && !t.on:
			t.busy = true
			add = append(add, c)
		case len(t.watchers) == 0 && t.on:
			t.busy = true
			drop = append(drop, c)
		case len(t.watchers) == 0:
			delete(h.topics, c)
		}
	}
	return add, drop
}

// sendCommand sends one command and waits until Redis has confirmed every channel.
func (h *hub) sendCommand(send func(context.Context, ...string) error, channels []string, broken <-chan error) error {
	h.mu.Lock()
	h.awaited = len(channels)
	select { // left over from an earlier connection
	case <-h.confirmed:
	default:
	}
	h.mu.Unlock()
	ctx, cancel := context.WithTimeout(h.ctx, h.timeout)
	defer cancel()
	if err := send(ctx, channels...); err != nil {
		return err
	}
	// The reader wakes it; after the timeout the connection is given up and opened anew.
	select {
	case <-h.confirmed:
		return nil
	case err := <-broken:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// readConnection takes messages from a connection until it breaks.
func (h *hub) readConnection(ps *redis.PubSub) error {
	for {
		got, err := ps.Receive(h.ctx)
		if err != nil {
			return err
		}
		switch m := got.(type) {
		case *redis.Subscription:
			h.noteConfirmed(m.Channel, m.Kind == "subscribe")
		case *redis.Message:
			h.noteMessage(m.Channel, m.Payload)
		}
	}
}
