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

// watched is a stream that ends with errSilent when nothing comes on it for a while.
type watched struct {
	transport.Stream
	silent idle
	over   atomic.Bool // it was silent for too long
}

// watchSilence has a stream end when d passes without an event, so that it can be asked for again. Whoever has it
// reads it: the watch ends with each Next.
func watchSilence(in transport.Stream, d time.Duration) *watched {
	w := &watched{Stream: in}
	w.silent.startWatch(d, func() {
		w.over.Store(true)
		in.Close()
	})
	return w
}

// Next waits for the next event.
func (w *watched) Next() *transport.Event {
	w.silent.noteHeard()
	e := w.Stream.Next()
	w.silent.stopWatch()
	if e.Err != nil && w.over.Load() {
		e.Err = errSilent
	}
	return e
}
