package wire

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"taskgate/shim"
)

func TestStreamsEndTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewStreams(&shim.Bound{})
		for range 3 {
			ctx, done, err := s.Enter(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			go func() {
				<-ctx.Done()
				if !errors.Is(context.Cause(ctx), shim.ErrDraining) {
					t.Error(context.Cause(ctx))
				}
				done()
				done()
			}()
		}
		_, early, _ := s.Enter(t.Context())
		early()
		for range 2 {
			if err := s.Close(t.Context()); err != nil {
				t.Error(err)
			}
		}
		if _, _, err := s.Enter(t.Context()); !errors.Is(err, shim.ErrDraining) {
			t.Error("a stream was opened after the end:", err)
		}
	})
}

func TestStreamsCloseGivesUp(t *testing.T) {
	s := NewStreams(&shim.Bound{})
	_, done, err := s.Enter(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer done()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Close(ctx); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
