package shimtest

import (
	"context"
	"encoding/json"
	"errors"
	"testing"

	"taskgate/shim"
)

// letGo calls wait until it has begun, and until its checkpoint is as good as it gets
// with this peer; then it lets go of the call and returns the newest checkpoint.
func letGo(t *testing.T, p *Peer, key string) json.RawMessage {
	t.Helper()
	ctx, cancel := context.WithCancelCause(within(t))
	var s Sink
	done := make(chan error, 1)
	go func() {
		_, err := p.Upstream.Call(ctx, Tool("wait", key), &s)
		done <- err
	}()
	Eventually(t, func() bool { return p.Runs(key) == 1 })
	if p.Resumes {
		Eventually(t, func() bool { return p.Upstream.Resumable(s.Latest()) })
	}
	cancel(shim.ErrDetached)
	if err := <-done; !errors.Is(err, shim.ErrDetached) {
		t.Fatalf("error %v, want ErrDetached", err)
	}
	return s.Latest()
}

// What Resumable says of a checkpoint is what Resume makes of it.
func testResumable(t *testing.T, p *Peer) {
	for _, cp := range []string{"", `{}`, `nonsense`, `{"era":"modern","id":"x","last":"y"}`} {
		if p.Upstream.Resumable(json.RawMessage(cp)) {
			t.Errorf("checkpoint %q is resumable", cp)
		}
	}
	cp := letGo(t, p, "k")
	if got := p.Upstream.Resumable(cp); got != p.Resumes {
		t.Fatalf("resumable is %t for %s", got, cp)
	}
	ctx, cancel := context.WithCancelCause(within(t))
	defer cancel(nil)
	done := make(chan error, 1)
	go func() {
		_, err := p.Upstream.Resume(ctx, Tool("wait", "k"), cp, &Sink{})
		done <- err
	}()
	if !p.Resumes {
		if err := <-done; !errors.Is(err, shim.ErrNotResumable) {
			t.Errorf("resuming ended with %v, want ErrNotResumable", err)
		}
		return
	}
	why := errors.New("the user changed their mind")
	cancel(why)
	if err := <-done; !errors.Is(err, why) {
		t.Errorf("resuming ended with %v, want the cause", err)
	}
	once(t, p, "k")
}
