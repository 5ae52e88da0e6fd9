package legacy_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"taskgate/gateway/legacy"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/wiretest"
)

// pullRest asks a replica for more, by number, until the end.
func (w *world) pullRest(g *legacyServer, s *segments) {
	w.t.Helper()
	for !s.over {
		wiretest.Wait(2 * time.Second)
		s.take(w.pull(g, s.task, fmt.Sprint(s.last)).one())
	}
}

// TestReplicasStream: a client whose stream broke fetches the rest at the other replica, by number.
func TestReplicasStream(t *testing.T) {
	inDraftWorld(t, allModes, func(t *testing.T, w *world) {
		h, s := w.stream(t, "tokens")
		wiretest.Wait(11 * time.Second)
		s.take(h.quit()[1:]...)
		w.pullRest(w.b, s)
		s.wantMerged(w.c, w.a)
	})
}

// TestStreamStopped: a replica that stops ends its pushes, and says how to get the rest.
func TestStreamStopped(t *testing.T) {
	inDraftWorld(t, allModes, func(t *testing.T, w *world) {
		h, s := w.stream(t, "tokens")
		wiretest.Wait(11 * time.Second)
		heard := h.said()
		s.take(heard[1:]...)
		wiretest.Check(t, w.a.Close(t.Context()))
		said := h.quit()[len(heard):] // one error that says how to get the rest
		if len(said) != 1 {
			t.Fatalf("the stream of %s ended with %s", s.task, said)
		}
		wantTexts(t, said[0], `"id":2`, "-32603", "lastSeqNr", string(s.task))
		w.pullRest(w.b, s) // its call runs on
		s.wantMerged(w.c, w.b)
	})
}

// TestLastWords: the request of a lost stream is answered if its log has no answer.
func TestLastWords(t *testing.T) {
	task := []byte(`{"jsonrpc":"2.0","id":"a","result":{"task":{"taskId":"t"}}}`)
	fails := []byte(`{"jsonrpc":"2.0","id":2,"error":{"code":-32603,"message":"no"}}`)
	asks := []byte(`{"jsonrpc":"2.0","id":"a","method":"roots/list"}`)
	const waits = `["a",{"keeper":"k"},{"task":"t"}]`
	for name, c := range map[string]struct {
		note string
		had  [][]byte
		want []string // the id, or a text
	}{
		"none":          {`[]`, nil, nil},
		"of no release": {`{}`, nil, nil},
		"asked":         {`["a"]`, [][]byte{asks}, []string{`"a"`}},
		"nonsense":      {`["a"]`, [][]byte{fails, []byte("nonsense")}, []string{`"a"`}},
		"failed":        {`[2]`, [][]byte{fails}, nil},
		"with a keeper": {`["a",{"keeper":"k"}]`, nil, []string{`"a"`}},
		"waits":         {waits, nil, []string{"was lost"}},
		"answered":      {waits, [][]byte{task}, nil},
	} {
		got := legacy.LastWords([]byte(c.note), c.had)
		if len(got) != len(c.want) {
			t.Errorf("%s: %s", name, got)
			continue
		}
		for i, m := range got {
			if msg, err := jsonrpc.Parse(m); err != nil || msg.Kind != jsonrpc.ErrorResponse || !strings.Contains(string(m), c.want[i]) {
				t.Errorf("%s: %s, want %s", name, m, c.want[i])
			}
		}
	}
}
