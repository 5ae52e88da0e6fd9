package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
)

// notifyReady tells the supervisor that the addresses are bound. Like all functions here it does nothing
// unless a supervisor has asked for it ($NOTIFY_SOCKET).
func (s *server) notifyReady() { s.notifySystem(daemon.SdNotifyReady) }

// notifyStopping tells the supervisor that this process drains, and how long that may take, so that the unit
// can leave out drain_delay and drain_timeout.
func (s *server) notifyStopping() {
	most := s.config.DrainDelay + s.config.DrainTimeout + 2*closeTimeout
	s.notifySystem(fmt.Sprintf("%s\nEXTEND_TIMEOUT_USEC=%d", daemon.SdNotifyStopping, most.Microseconds()))
}

// notifyAlive tells the supervisor twice within each $WATCHDOG_USEC that this process answers, until ctx
// ends.
func (s *server) notifyAlive(ctx context.Context) error {
	every, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		return fmt.Errorf("watchdog: %w", err)
	}
	if every == 0 {
		return nil
	}
	tick := time.NewTicker(every / 2)
	defer tick.Stop()
	for {
		if takesConnections(ctx, s.listener.Addr().String(), every/2) {
			s.notifySystem(daemon.SdNotifyWatchdog)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// takesConnections reports whether the listener at an address accepts a connection and answers in it, or
// closes it, in time. It sends an invalid request, so handlers are left alone. If the connection itself
// fails, it returns true: files or addresses may be used up, and a restart would end running calls.
func takesConnections(ctx context.Context, address string, patience time.Duration) bool {
	ctx, stop := context.WithTimeout(ctx, patience)
	defer stop()
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		return !errors.Is(ctx.Err(), context.DeadlineExceeded)
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	_, err = io.WriteString(conn, "?\r\n\r\n")
	if err == nil {
		_, err = conn.Read(make([]byte, 1))
	}
	return !errors.Is(err, os.ErrDeadlineExceeded)
}

func (s *server) notifySystem(state string) {
	if _, err := daemon.SdNotify(false, state); err != nil {
		s.log.Warn("the supervisor was not told", "state", state, "err", err)
	}
}
