package legacy

import (
	"context"
	"sync"
	"time"

	"taskgate/gateway/endpoint"
	"taskgate/gateway/upstream"
	"taskgate/gateway/upstream/forward"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
)

// reviewer keeps the listening at the replica with the session's GET stream, and up to date with the session's
// subscriptions, which any replica may change. It ends the listening once another replica holds the GET stream and
// listens, or when this one has had no GET stream for listenLinger. It has a goroutine only while it looks.
type reviewer struct {
	l      *listener
	ctx    context.Context // ends with it
	cancel context.CancelFunc
	up     upstream.Client
	began  time.Time
	linger *time.Timer
	leave  []func() // what has it look no more

	noted string // the digest in the note of the stream; belongs to the goroutine

	mu     sync.Mutex
	due    bool // it has to look
	rights bool // a reload shows the client other tools
	looks  bool // there is a goroutine
	over   bool
}

// newReviewer makes one for a request. An event of the session's log or record has it look, also one that was lost
// (Logs.Watch), the end of a GET stream here, and listenLinger without one.
func newReviewer(ctx context.Context, l *listener, up upstream.Client) *reviewer {
	r := &reviewer{l: l, up: up, began: time.Now()}
	r.ctx, r.cancel = context.WithCancel(forward.Carry(l.s.ctx, ctx))
	r.linger = time.AfterFunc(listenLinger, func() {
		if !l.s.isAttached() {
			r.lookSoon()
		}
	})
	r.leave = []func(){l.s.table.store.Watch(l.s.id, r.lookSoon), endpoint.WatchRights(ctx, r.tellRights)}
	return r
}

// reviewSoon has the listening looked at.
func (l *listener) reviewSoon() {
	l.mu.Lock()
	r := l.review
	l.mu.Unlock()
	if r != nil {
		r.lookSoon()
	}
}

// lookSoon has it look once more. It neither blocks nor calls back.
func (r *reviewer) lookSoon() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.due = true
	r.beginLook()
}

// tellRights has the client told that it may be shown other tools, as lookSoon does.
func (r *reviewer) tellRights() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.rights = true
	r.beginLook()
}

// beginLook begins the goroutine, which the table waits for. The caller holds r.mu.
func (r *reviewer) beginLook() {
	r.looks = r.looks || !r.over && r.l.s.table.work.Go(func() {
		for r.lookOnce() {
			continue
		}
	})
}

// endReview has it look no more, once it has looked. The caller holds listener.mu.
func (r *reviewer) endReview() {
	r.mu.Lock()
	r.over = true
	r.mu.Unlock()
	r.cancel()
	r.linger.Stop()
	for _, leave := range r.leave {
		leave()
	}
}

// lookOnce does what is due, and reports whether anything was.
func (r *reviewer) lookOnce() bool {
	r.mu.Lock()
	due, rights := r.due && !r.over, r.rights && !r.over
	r.due, r.rights, r.looks = false, false, due || rights
	r.mu.Unlock()
	if rights {
		r.l.s.postMessage(jsonrpc.AppendNotification(nil, mcp.NotifyToolsListChanged, nil))
	}
	if due {
		r.lookNow()
	}
	return due || rights
}

func (r *reviewer) lookNow() {
	l, s := r.l, r.l.s
	left := l.endLeft(r.ctx, r.began)
	if left >= listenLinger {
		s.table.reapSession(s)
		return
	}
	r.linger.Reset(listenLinger - left)
	st, err := s.loadState(r.ctx)
	switch here := s.isAttached(); {
	case err != nil: // the next change is another try
	case here:
		_, _ = l.startListening(r.ctx, r.up)
		if d := l.currentDigest(); d != r.noted {
			if kept, err := s.table.store.Note(r.ctx, s.id, getStream, s.holderNote("")); kept && err == nil {
				r.noted = d
			}
		}
	case s.isHeardElsewhere(r.ctx, st.Subscriptions) && !s.isAttached(): // it may have come here meanwhile
		<-l.endListening(upstream.ErrMoved)
		s.table.reapSession(s) // which ends the posts under way
	}
}
