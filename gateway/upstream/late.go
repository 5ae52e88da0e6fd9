package upstream

import (
	"net/http"
	"time"
)

// headPatience is how long the head of a resumed stream is waited for. Servers of the
// Go SDK (1.8.0) send it with the first event, and one that waits for the answer to a
// question from before has none to send: whoever took over the call, and has that
// answer, must not wait for the head.
const headPatience = 500 * time.Millisecond

// head is the beginning of a response, or why there is none.
type head struct {
	resp *http.Response
	in   *inbound
	err  error
}

// receiveLate is receive for a resumed stream. One whose head does not come soon is
// taken for open; should the server refuse it after all, reading it says so.
func (x *exchange) receiveLate(req *http.Request) (*inbound, error) {
	heads := make(chan head, 1)
	go func() { heads <- x.fetch(req) }()
	timer := time.NewTimer(headPatience)
	defer timer.Stop()
	select {
	case h := <-heads:
		return x.headed(h)
	case <-timer.C:
	}
	in := &inbound{life: x.life, end: x.end, ahead: newAhead(x.h.cfg.MaxEvent), late: true}
	go func() {
		h := <-heads // comes at the latest when the exchange ends, since the request does
		if h.err != nil {
			in.ahead.push(in.life, item{err: h.err})
			return
		}
		defer h.in.close()
		in.feed(h.in)
	}()
	return in, nil
}
