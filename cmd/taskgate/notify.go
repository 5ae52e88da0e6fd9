package main

import (
	"context"
	"fmt"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
)

// notifyReady tells the supervisor that the addresses are bound. It does nothing where no supervisor
// has asked for it ($NOTIFY_SOCKET), as does all that is here.
func (s *server) notifyReady() { s.notify(daemon.SdNotifyReady) }

// notifyStopping tells the supervisor that this process drains, and how long that may take: the
// unit has to know nothing of drain_delay and drain_timeout.
func (s *server) notifyStopping() {
	most := s.config.DrainDelay + s.config.DrainTimeout + 2*closeTimeout
	s.notify(fmt.Sprintf("%s\nEXTEND_TIMEOUT_USEC=%d", daemon.SdNotifyStopping, most.Microseconds()))
}

// notifyAlive tells the supervisor twice within each $WATCHDOG_USEC that this process lives, until
// ctx ends.
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
		s.notify(daemon.SdNotifyWatchdog)
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

func (s *server) notify(state string) {
	if _, err := daemon.SdNotify(false, state); err != nil {
		s.log.Warn("the supervisor was not told", "state", state, "err", err)
	}
}
