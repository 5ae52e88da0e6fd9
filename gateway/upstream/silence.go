package upstream

import (
	"errors"
	"sync/atomic"
	"time"

	"taskgate/gateway/upstream/transport"
)

// idle is the watch over the silence of a server.
type idle struct {
	d      time.Duration
	timer  *time.Timer
	paused atomic.Int32 // how many pause it
}

func (i *idle) startWatch(d time.Duration, f func()) {
	if d > 0 {
		i.d, i.timer = d, time.AfterFunc(d, func() {
			if i.paused.Load() == 0 {
				f()
			}
		})
	}
}

// noteHeard restarts the watch, since the server has been heard.
func (i *idle) noteHeard() {
	if i.timer != nil && i.paused.Load() == 0 {
		i.timer.Reset(i.d)
	}
}

// pauseWatch stops the watch while the gateway waits for something else.
func (i *idle) pauseWatch() {
	if i.timer != nil {
		i.paused.Add(1)
		i.timer.Stop()
	}
}

func (i *idle) resumeWatch() {
	if i.timer != nil {
		if i.paused.Add(-1) == 0 {
			i.timer.Reset(i.d)
		}
	}
}

func (i *idle) stopWatch() {
	if i.timer != nil {
		i.timer.Stop()
	}
}

// errSilent says that a resumed stream brought nothing for a while.
var errSilent = errors.New("the resumed stream is silent")

// watched is a resumed stream that ends with errSilent after d without an event, so that it can be asked for
// again.
type watched struct {
	transport.Stream
	d    time.Duration
	over bool // it was silent for too long
}

// Next waits for the next event.
func (w *watched) Next() *transport.Event {
	timer := time.AfterFunc(w.d, w.Close)
	e := w.Stream.Next()
	w.over = !timer.Stop() || w.over
	if e.Err != nil && w.over {
		e.Err = errSilent
	}
	return e
}
