package legacy

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"taskgate/gateway/upstream"
	"taskgate/internal/wiretest"
	"taskgate/shim"
)

// slowSessions take a second to post a message.
type slowSessions struct{ Sessions }

func (l slowSessions) Post(ctx context.Context, id, stream string, message []byte) (int64, error) {
	select {
	case <-time.After(time.Second):
		return l.Sessions.Post(ctx, id, stream, message)
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
}

// talker is a server that has said two things when its listener goes.
type talker struct{ upstream.Client }

func (talker) Describe(context.Context, shim.Session) (upstream.Description, error) {
	return upstream.Description{}, nil
}

func (talker) Listen(ctx context.Context, _ shim.Session, f shim.Filter, ready func(shim.Filter), on func(shim.Notification)) error {
	ready(f)
	on(shim.Notification{Method: "notifications/tools/list_changed"})
	on(shim.Notification{Method: "notifications/prompts/list_changed"})
	<-ctx.Done()
	return context.Cause(ctx)
}

// What the server has said to the replica that a client leaves is in the log before that replica forgets the session.
func TestSaidBeforeTheClientMoves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := wiretest.OpenSessions(t, 1, time.Hour)
		table, _ := newTable(slowSessions{store})
		s := mustCreate(t, table, sessionState{Version: "2025-11-25"})
		wiretest.Must(s.listen.startListening(t.Context(), talker{}))(t)
		s.endUse()
		wiretest.Wait(500 * time.Millisecond)
		wiretest.Must(store.Open(t.Context(), s.id, getStream, []byte("other/ "+digestOf(nil))))(t)
		wiretest.Wait(3 * time.Second)
		said := 0
		if _, _, err := store.Since(t.Context(), s.id, getStream, 0, func(int64, []byte) { said++ }); err != nil || said != 2 {
			t.Errorf("%d messages in the log, %v", said, err)
		}
		if n := table.Count(); n != 0 {
			t.Errorf("%d sessions are kept", n)
		}
		wiretest.Check(t, table.Close(t.Context()))
	})
}
