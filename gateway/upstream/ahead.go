package upstream

import (
	"context"
	"sync"
	"time"
)

// ahead is what was read of a stream while a question waits for its answer, and has not
// been handled yet: the Sink is busy. One goroutine reads and one handles.
type ahead struct {
	more chan struct{} // has a value once there may be an item
	room chan struct{} // and one for the next; nil while it was never missed

	most int64 // bytes: the size that one event may have

	mu    sync.Mutex
	items []item
	bytes int64
	look  func([]item) // is shown all that is held when there is more; nil for nobody
}

func newAhead(most int64) *ahead {
	return &ahead{more: make(chan struct{}, 1), most: most}
}

// pump gives the reading a goroutine of its own, so that the stream is heard while a
// question waits for its answer. It ends with the stream or the exchange, and waits when
// there are too many events, or so many bytes.
func (in *inbound) pump(most int64) {
	if in.ahead != nil {
		return
	}
	in.ahead = newAhead(most)
	go in.feed(in)
}

// feed hands on what is read from a stream until it ends, or the exchange does.
func (in *inbound) feed(from *inbound) {
	for {
		var it item
		from.read(&it)
		it.msgs = keep(it.msgs)
		if !in.ahead.push(in.life, it) || it.err != nil {
			return
		}
	}
}

// push adds an item as soon as there is room. It reports false if life ends before.
func (a *ahead) push(life context.Context, it item) bool {
	for !a.add(it) {
		select {
		case <-a.room:
		case <-life.Done():
			return false
		}
	}
	return true
}

func (a *ahead) add(it item) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.items) >= maxBacklog || a.bytes >= a.most {
		if a.room == nil {
			a.room = make(chan struct{}, 1)
		}
		return false
	}
	a.items = append(a.items, it)
	a.bytes += sizeOf(it)
	if a.look != nil {
		a.look(a.items)
	}
	signal(a.more)
	return true
}

// next removes the oldest item. It reports false if done, or late, comes before there
// is one; once it is late it does not look.
func (a *ahead) next(it *item, done <-chan struct{}, late <-chan time.Time) bool {
	for {
		select {
		case <-late:
			return false
		default:
		}
		if a.pop(it) {
			return true
		}
		select {
		case <-a.more:
		case <-done:
			return false
		case <-late:
			return false
		}
	}
}

func (a *ahead) pop(it *item) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.items) == 0 {
		return false
	}
	*it, a.items[0] = a.items[0], item{}
	a.bytes -= sizeOf(*it)
	if a.items = a.items[1:]; len(a.items) == 0 {
		a.items = nil // nothing is kept for what may never come
	}
	signal(a.room)
	return true
}

// back undoes a next.
func (a *ahead) back(it item) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.items = append([]item{it}, a.items...)
	a.bytes += sizeOf(it)
}

// show has look called with what is held now, and again whenever there is more, until
// the next show. It is called under a lock and does not wait. nil is for nobody.
func (a *ahead) show(look func([]item)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.look = look; look != nil {
		look(a.items)
	}
}

// signal wakes one waiter; signals that nobody has seen yet are one.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
