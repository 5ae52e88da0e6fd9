package gateway

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/netip"
	"time"

	"taskgate/gateway/auth"
	"taskgate/gateway/wire"
	"taskgate/internal/jsonrpc"
	"taskgate/shim"
)

// rate bounds how many requests a caller may send per second, to all replicas together. Nil is
// no bound. Where the store cannot be asked, requests are let in: a rate protects what is
// behind it from too much, and must not be what keeps everybody out.
type rate struct {
	take func(ctx context.Context, caller string, n int) (wait time.Duration, err error)
	tel  *wire.Telemetry
	log  *slog.Logger
}

func newRate(o Options, tel *wire.Telemetry) (*rate, error) {
	if o.Config.Rate.Requests == 0 {
		return nil, nil
	}
	if o.Rate == nil {
		return nil, errors.New("a rate is configured, and nobody counts")
	}
	return &rate{take: o.Rate, tel: tel, log: o.Logger}, nil
}

// limited serves a request if it does not come too early. The body of one that does is not read.
func (l *rate) limited(next authenticated) authenticated {
	if l == nil {
		return next
	}
	return func(w http.ResponseWriter, r *http.Request, c auth.Caller) {
		if err := l.admit(r, c.Principal, 1); err != nil {
			leaveUnread(w, r)
			l.refuse(w, r, err)
			return
		}
		next(w, r, c)
	}
}

// batch counts the messages of a batch beyond its first, which was counted with the request.
// msg is zero for a batch.
func (l *rate) batch(r *http.Request, p shim.Principal, body []byte, msg jsonrpc.Message) error {
	if l == nil || msg.Kind != 0 {
		return nil
	}
	all, _, _ := jsonrpc.Split(body)
	if len(all) < 2 {
		return nil
	}
	return l.admit(r, p, len(all)-1)
}

// admit takes n requests out of what a caller may send, or says that they come too early.
func (l *rate) admit(r *http.Request, p shim.Principal, n int) error {
	wait, err := l.take(r.Context(), callerOf(r, p), n)
	switch {
	case err != nil && r.Context().Err() != nil: // the client has gone: nothing is done that was not counted
		wait = time.Second
	case err != nil: // the store says in the log that it does not answer
		l.log.DebugContext(r.Context(), "the rate of a caller is not known", "error", err)
		return nil
	}
	if wait > 0 {
		return wire.TurnAway(&shim.BusyError{Key: wire.KeyRate, Limit: "requests of this caller", RetryAfter: wait})
	}
	return nil
}

// refuse answers a request that comes too early.
func (l *rate) refuse(w http.ResponseWriter, r *http.Request, err error) {
	l.tel.Refused(r.Context(), err)
	wire.WriteFailure(w, "", wire.FailureOf("", err))
}

// callerOf names whoever has a rate: the principal, or else the address that the connection
// comes from. Of an IPv6 address that is the network: a client may choose the rest itself.
func callerOf(r *http.Request, p shim.Principal) string {
	if owner := p.Owner(); owner != "" {
		return "p:" + owner
	}
	at, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return "a:" + r.RemoteAddr
	}
	addr := at.Addr().Unmap()
	if addr.Is4() {
		return "a:" + addr.String()
	}
	network, _ := addr.Prefix(64)
	return "a:" + network.Masked().Addr().WithZone("").String()
}
