package legacy

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"taskgate/shim"
)

// roomy are limits that no test reaches.
var roomy = stateLimits{bytes: 1 << 20, subscriptions: 1000, uri: 1 << 10}

// However full a state is, there is room for all that is noted in it while the session lasts.
func TestStateKeepsRoomForNames(t *testing.T) {
	st := sessionState{Upstream: "up", Version: "2025-11-25"}
	l := stateLimits{bytes: 16 << 10, subscriptions: 1000, uri: 1 << 20}
	for n := l.bytes; ; n-- {
		st.ClientInfo = json.RawMessage(`"` + strings.Repeat("x", n) + `"`)
		if busy := (*shim.BusyError)(nil); !errors.As(l.checkSize(st), &busy) {
			break
		} else if busy.Key != "max_session_bytes" {
			t.Fatalf("refused by %s", busy.Key)
		}
	}
	st.LogLevel, st.Token = "emergency", "passthrough:"+strings.Repeat("x", 43)
	for range mostTold {
		st.Tasks = append(st.Tasks, shim.NewID())
	}
	for range mostSessionQuestions {
		st.SessionQuestions = append(st.SessionQuestions, shim.NewID())
	}
	b, err := st.encode()
	if err != nil || len(b) > l.bytes || len(b) < l.bytes-200 {
		t.Errorf("a full state has %d bytes, %v", len(b), err)
	}
	if st, err := l.addSubscription(st, "a"); err != nil && len(st.Tasks) != mostTold {
		t.Errorf("a refused subscription changed the state: %v", err)
	}
}

// Questions that come at the same time have no more room than others.
func TestStateKeepsToItsQuestions(t *testing.T) {
	var st sessionState
	for range mostSessionQuestions {
		next, err := st.withSessionQuestions([]shim.ID{shim.NewID()}, nil)
		if err != nil {
			t.Fatal(err)
		}
		st = next
	}
	if full, err := st.withSessionQuestions([]shim.ID{shim.NewID()}, nil); !errors.Is(err, errManySessionQuestions) || len(full.SessionQuestions) != mostSessionQuestions {
		t.Errorf("one more: %v", err)
	}
	if less, err := st.withSessionQuestions(nil, st.SessionQuestions[:1]); err != nil || len(less.SessionQuestions) != mostSessionQuestions-1 {
		t.Errorf("one that is over: %v", err)
	}
}
