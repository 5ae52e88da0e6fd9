package upstream

import (
	"errors"
	"sync/atomic"
	"time"

	"taskgate/gateway/upstream/transport"
)

// idle is the watch over a server that must not be silent for too long.
type idle struct {
	d      time.Duration
	timer  *time.Timer
	paused atomic.Int32 // by how many
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

// noteHeard says that the server has just been heard.
func (i *idle) noteHeard() {
	if i.timer != nil && i.paused.Load() == 0 {
		i.timer.Reset(i.d)
	}
}

// pauseWatch stops the watch while it is not the server that is waited for.
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

// errSilent: nothing came on a resumed stream for a while.
var errSilent = errors.New("the resumed stream is silent")

// watched is a resumed stream that ends with errSilent when d passes without an event, so that it can be asked for
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
