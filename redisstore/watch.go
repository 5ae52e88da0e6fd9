package redisstore

import (
	"cmp"
	"context"
	"iter"
	"slices"
	"strconv"
	"strings"

	"taskgate/internal/work"
	"taskgate/shim"
)

// watcher is one Watch. It keeps one event of bounded size per task for its caller, so a slow caller takes no
// more room. All fields but wake and call belong to hub.mu.
type watcher struct {
	wake    chan struct{} // there is something to yield
	call    func()        // is called in place of that, under hub.mu; the events themselves are dropped
	missing int           // channels that are unsubscribed now
	sync    bool          // a Synced is due
	begun   bool          // the first Synced was due
	pending map[shim.ID]shim.Event
	goodbye bool // a goodbye is to be yielded
	linger  []shim.LingerNews
}

// mostLinger bounds the news of calls that may be picked up which wait for a slow reader. It reads those that matter
// again at its next beat.
const mostLinger = 10_000

// noteEvent takes an event: a goodbye, or the new version of a task.
func (w *watcher) noteEvent(e shim.Event) {
	if w.call != nil {
		return
	}
	if e.Goodbye {
		w.goodbye = true
		return
	}
	if e.Linger != nil {
		if len(w.linger) < mostLinger {
			w.linger = append(w.linger, *e.Linger)
		}
		return
	}
	if w.pending == nil {
		w.pending = map[shim.ID]shim.Event{}
	}
	if was, ok := w.pending[e.ID]; ok {
		token := cmp.Or(e.Token, was.Token)
		if was.Version == signalSent || e.Version == signalSent {
			token = joinSignals(was, e)
		}
		e.Version, e.Token = max(was.Version, e.Version), token
	}
	w.pending[e.ID] = e
}

// noteSynced notes that everything watched is subscribed. The caller then reads everything again, which
// covers the pending events.
func (w *watcher) noteSynced() {
	w.sync, w.begun, w.goodbye = true, true, false
	clear(w.pending)
	w.signal()
}

// signal tells whoever watches that there is something to yield.
func (w *watcher) signal() {
	if w.call != nil {
		w.call()
	} else {
		work.Signal(w.wake)
	}
}

// callOn calls back when a channel is subscribed, also after each reconnect, and for each of its events, until stop is
// called; no call is under way from then on. The call must neither block nor use the hub.
func (h *hub) callOn(channel string, call func()) (stop func()) {
	w := &watcher{call: call}
	h.joinTopics(w, channel)
	return func() { h.leaveTopics(w, []string{channel}) }
}

// watchChannels yields the events of channels. It runs in its caller's goroutine.
func (h *hub) watchChannels(ctx context.Context, channels []string) iter.Seq2[shim.Event, error] {
	return func(yield func(shim.Event, error) bool) {
		w := &watcher{wake: make(chan struct{}, 1)}
		h.joinTopics(w, channels...)
		defer h.leaveTopics(w, channels)
		for {
			events, err := h.takeEvents(w)
			for _, e := range events {
				if ctx.Err() != nil || !yield(e, nil) {
					return
				}
			}
			if err != nil {
				yield(shim.Event{}, err)
				return
			}
			// The reader of the subscription wakes it, also after each reconnect. A message may be lost, so
			// callers also look by themselves.
			select {
			case <-ctx.Done():
				return
			case <-w.wake:
			}
		}
	}
}

// joinTopics adds a watcher to its topics.
func (h *hub) joinTopics(w *watcher, channels ...string) {
	h.mu.Lock()
	for _, c := range channels {
		t := h.topics[c]
		if t == nil {
			t = &topic{}
			h.topics[c] = t
		}
		t.watchers = append(t.watchers, w)
		if !t.on || t.busy { // busy and on: the hub is leaving it at this moment
			w.missing++
			h.dirty[c] = struct{}{}
		}
	}
	if w.missing == 0 {
		w.noteSynced()
	}
	h.mu.Unlock()
	h.started.Do(func() { h.done.Go(h.keepSession) })
	work.Signal(h.kick)
}

// leaveTopics removes a watcher. The writer then unsubscribes the channels without a watcher.
func (h *hub) leaveTopics(w *watcher, channels []string) {
	h.mu.Lock()
	for _, c := range channels {
		t := h.topics[c]
		t.watchers = slices.DeleteFunc(t.watchers, func(o *watcher) bool { return o == w })
		if len(t.watchers) == 0 {
			h.dirty[c] = struct{}{}
		}
	}
	h.mu.Unlock()
	work.Signal(h.kick)
}

// takeEvents empties a watcher.
func (h *hub) takeEvents(w *watcher) ([]shim.Event, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ctx.Err() != nil {
		return nil, errClosed
	}
	var events []shim.Event
	if w.sync {
		events, w.sync = append(events, shim.Event{Synced: true}), false
	}
	if w.goodbye {
		events, w.goodbye = append(events, shim.Event{Goodbye: true}), false
	}
	for _, e := range w.pending {
		events = append(events, e)
	}
	clear(w.pending)
	for i := range w.linger {
		events = append(events, shim.Event{Linger: &w.linger[i]})
	}
	w.linger = nil
	return events, nil
}

// resyncAll makes all watchers read again, after Redis has lost data. The subscription itself may still be
// up.
func (h *hub) resyncAll() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, t := range h.topics {
		for _, w := range t.watchers {
			if w.missing == 0 {
				w.noteSynced()
			}
		}
	}
}

// noteConfirmed notes that a channel is subscribed, or unsubscribed.
func (h *hub) noteConfirmed(channel string, on bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.awaited--; h.awaited == 0 {
		h.confirmed <- struct{}{}
	}
	t := h.topics[channel]
	if t == nil {
		return
	}
	t.on, t.busy = on, false
	if on {
		for _, w := range t.watchers {
			if w.missing--; w.missing == 0 {
				w.noteSynced()
			}
		}
	}
	if on != (len(t.watchers) > 0) { // somebody came or left meanwhile
		h.dirty[channel] = struct{}{}
		work.Signal(h.kick)
	}
	if !on && len(t.watchers) == 0 {
		delete(h.topics, channel)
	}
}

// noteMessage notes an event for each watcher of the channel.
func (h *hub) noteMessage(channel, payload string) {
	e := parseEvent(payload)
	if e.Goodbye = channel == h.goodbyes; channel == h.repeats {
		e = shim.Event{Linger: parseLinger(payload)}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if channel == h.probe {
		h.heard = true
		return
	}
	t := h.topics[channel]
	if t == nil {
		return
	}
	for _, w := range t.watchers {
		if !w.begun { // the first Synced will cover it
			continue
		}
		w.noteEvent(e)
		w.signal()
	}
}

// noteLost notes that the connection is gone, and with it every subscription.
func (h *hub) noteLost() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.awaited, h.heard = 0, false
	for c, t := range h.topics {
		if len(t.watchers) == 0 {
			delete(h.topics, c)
			continue
		}
		// A watcher that joined while the hub left the topic has counted it as missing already.
		if t.on && !t.busy {
			for _, w := range t.watchers {
				w.missing++
			}
		}
		t.on, t.busy = false, false
		h.dirty[c] = struct{}{}
	}
}

// withToken begins the token that follows in an event for a runner (apply.lua).
const withToken = "token "

// signalSent is the revision in the event of a signal: the state of the session is unchanged.
const signalSent = -1

const (
	// signalsEnd ends each of several signals in one event but the last.
	signalsEnd = "\n"
	// signalsJoined bounds them in bytes. A token has up to 16 KiB, and grows by half when it is sealed.
	signalsJoined = 64 << 10
	// signalToken begins the token in the name of a signal; the list of signals has none.
	signalToken = "#"
)

// joinSignals returns the signals of two events of a session. It returns "" if they are too many or unknown;
// then the list of signals is read.
func joinSignals(a, b shim.Event) string {
	switch {
	case a.Version != signalSent && a.Token == "":
		return b.Token
	case b.Version != signalSent && b.Token == "":
		return a.Token
	case a.Token == "" || b.Token == "" || len(a.Token)+len(b.Token) > signalsJoined:
		return ""
	}
	return a.Token + signalsEnd + b.Token
}

// parseEvent reads "id version", which may be followed by a token.
func parseEvent(payload string) shim.Event {
	id, rest, _ := strings.Cut(payload, " ")
	version, rest, _ := strings.Cut(rest, " ")
	e := shim.Event{ID: shim.ID(id)}
	e.Version, _ = strconv.ParseInt(version, 10, 64)
	if token, ok := strings.CutPrefix(rest, withToken); ok {
		e.Token = token
	}
	return e
}
