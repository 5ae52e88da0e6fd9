package service

import (
	"context"
	"io"
	"strings"
	"testing"

	"golang.org/x/sys/windows/svc"
)

// TestStop: a stop of a service ends its context, the manager hears that it takes a while, and the service ends with
// its own exit code once it is done.
func TestStop(t *testing.T) {
	for _, want := range []int{0, 1} {
		var log strings.Builder
		s := &service{log: &log, run: func(ctx context.Context, log io.Writer) int {
			<-ctx.Done()
			_, _ = io.WriteString(log, "drained")
			return want
		}}
		requests, status, ended := make(chan svc.ChangeRequest), make(chan svc.Status, 10), make(chan uint32, 1)
		go func() {
			_, code := s.Execute(nil, requests, status)
			ended <- code
		}()
		if now := <-status; now.State != svc.Running || now.Accepts&svc.AcceptStop == 0 {
			t.Errorf("at first %+v", now)
		}
		requests <- svc.ChangeRequest{Cmd: svc.Interrogate, CurrentStatus: svc.Status{State: svc.Running}}
		if now := <-status; now.State != svc.Running {
			t.Errorf("asked, %+v", now)
		}
		requests <- svc.ChangeRequest{Cmd: svc.Stop}
		if now := <-status; now.State != svc.StopPending || now.WaitHint == 0 {
			t.Errorf("stopped, %+v", now)
		}
		if code := <-ended; code != uint32(want) || log.String() != "drained" {
			t.Errorf("exit code %d, log %q", code, &log)
		}
	}
}
