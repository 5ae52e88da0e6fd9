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

// hub is the one subscriber connection of a Store, and the fan-out from it to the
// watchers. A channel is subscribed while somebody watches it.
//
// Two goroutines serve it, however much is watched. The writer (session) sends
// one SUBSCRIBE or UNSUBSCRIBE at a time, for all channels that have gathered
// meanwhile, and waits until Redis has confirmed it. The reader (read) only takes
// what comes and marks who has to know: it never waits for a watcher nor for the
// writer, because a reader that stops reading stops a Redis in the same process.
type hub struct {
	client    redis.UniversalClient
	log       *slog.Logger
	interval  time.Duration         // between probes
	patience  time.Duration         // for a probe to come back, looked at when the next is due
	timeout   time.Duration         // for a confirmation
	newProbe  func() string         // makes a channel for probes
	goodbyes  string                // channel of the goodbyes
	joined    func(context.Context) // is called when a connection works
	looks     func(context.Context) // is called now and then while it does, each lookEvery
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
	confirmed chan struct{}       // gets a value when there are none left
	probe     string              // channel of the probes of the present connection
	heard     bool                // the last probe came back
	closed    bool
}

// topic is a channel. It is on when Redis has confirmed the subscription on the
// present connection. All fields belong to hub.mu.
type topic struct {
	watchers []*watcher
	on       bool
	busy     bool // the writer is about it: a command is on its way
}

// errDeaf says that a connection works but events do not arrive on it.
var errDeaf = errors.New("subscription does not deliver")

// newHub makes the hub of a client. Its session, once something is watched, tests the connection at each interval.
func newHub(client redis.UniversalClient, log *slog.Logger, k keys, interval time.Duration) *hub {
	ctx, stop := context.WithCancel(context.Background())
	return &hub{
		client: client, log: log, timeout: 10 * time.Second, interval: interval, patience: interval / 2,
		newProbe: func() string { return k.probe(rand.Text()) }, goodbyes: k.goodbyes(),
		ctx: ctx, stop: stop, kick: make(chan struct{}, 1),
		topics: map[string]*topic{}, dirty: map[string]struct{}{}, confirmed: make(chan struct{}, 1),
	}
}

// startServing begins to serve, at the first watch.
func (h *hub) startServing() {
	h.started.Do(func() { h.done.Go(h.keepSession) })
}

// endPatience is how long the goroutines of a hub are waited for: one may wait for the greeting of a Redis that is
// frozen, which go-redis goes on with until its time is over.
const endPatience = time.Second

// endWatches ends all watches.
func (h *hub) endWatches() {
	h.mu.Lock()
	h.closed = true
	for _, t := range h.topics {
		for _, w := range t.watchers {
			work.Signal(w.wake)
		}
	}
	h.mu.Unlock()
	h.stop()
	h.started.Do(func() {}) // never start from now on
	ended := make(chan struct{})
	go func() {
		h.done.Wait()
		close(ended)
	}()
	_ = work.PauseFor(context.Background(), ended, endPatience)
}

// keepSession keeps a session going until the hub is closed. That there is none is logged
// once, and again when Redis names another reason: a connection that breaks may be
// followed by a Redis that refuses the next, and only an operator can change that.
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

// serveConnection is the life of one connection; up is called once it works. In a cluster
// the first channel chooses the node, any of which gets all messages, so each
// connection has a probe of its own: the next one leads elsewhere if a node is gone.
func (h *hub) serveConnection(up func()) error {
	probe := h.newProbe()
	h.mu.Lock()
	h.probe = probe
	h.mu.Unlock()
	ps := h.client.Subscribe(h.ctx)
	broken, ended := make(chan error, 1), make(chan struct{})
	h.done.Go(func() {
		defer close(ended)
		broken <- h.readConnection(ps)
	})
	defer func() { // nothing of this connection may be heard during the next one
		_ = ps.Close()
		<-ended
	}()
	if err := h.sendCommand(ps.Subscribe, []string{probe}, broken); err != nil {
		return err
	}
	up()
	h.joined(h.ctx)
	tick, look := time.NewTicker(h.interval), time.NewTicker(h.lookEvery)
	defer tick.Stop()
	defer look.Stop()
	for probed := (time.Time{}); ; {
		if err := h.syncChannels(ps, broken); err != nil {
			return err
		}
		// Whoever begins or ends a watch wakes it, and a broken connection; a probe that does not come back
		// finds a connection that is silently dead, within two intervals.
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

// syncChannels brings the subscriptions of the connection in line with what is watched.
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

// maxChannels bounds one command.
const maxChannels = 1024

// dueChannels says which channels to subscribe and which to leave.
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

// sendCommand sends one command and waits until it is confirmed for every channel.
func (h *hub) sendCommand(send func(context.Context, ...string) error, channels []string, broken <-chan error) error {
	h.mu.Lock()
	h.awaited = len(channels)
	select { // left over from a connection that is lost
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

// readConnection takes what comes on a connection until it breaks.
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
