package legacy_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"taskgate/gateway/legacy"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/wiretest"
	"taskgate/shim"
)

// streamOf is the name of the stream that an event belongs to.
func streamOf(t *testing.T, eventID string) string {
	t.Helper()
	name, _, ok := legacy.ParseEventID(eventID)
	if !ok {
		t.Fatalf("no event id: %q", eventID)
	}
	return name
}

// loses has the replica that keeps a stream count as lost until it has been buried. It
// lives, and says so now and then, as one that was frozen for a while.
func (r *legacyReplicas) loses(t *testing.T, session, stream string) {
	t.Helper()
	key := r.store.Keys("tg:*:m:" + session)[0]
	keeper := func() string {
		name, _ := r.store.Do("hget", key, "s:"+stream).(string)
		return name
	}
	settled(t, "the stream is over", func() bool {
		if before := keeper(); before != "" {
			r.store.Do("del", "tg:alive:"+before)
		}
		r.store.Do("publish", strings.Replace(key, ":m:", ":lev:", 1), session+" 0") // or who follows looks later
		return keeper() == ""
	})
}

// toldRest reads a stream to its end: one error that says how to get the rest.
func toldRest(t *testing.T, c *sseClient, id string, task shim.ID) {
	t.Helper()
	said := ""
	for _, data, ok := c.event(); ok; _, data, ok = c.event() {
		said += data
	}
	if strings.Count(said, "jsonrpc") != 1 || !strings.Contains(said, `"id":"`+id+`"`) || !strings.Contains(said, "-32603") ||
		!strings.Contains(said, "lastSeqNr") || !strings.Contains(said, string(task)) {
		t.Errorf("the stream of %s ended with %q", task, said)
	}
}

// TestStreamLost: a client that resumes the stream of a push whose replica is lost is told
// to fetch the rest by number, each time that it resumes, and gets every block once. A
// replica that was only slow adds nothing to the stream.
func TestStreamLost(t *testing.T) {
	stack, say, a, b := streamingReplicas(t)
	first := openSSE(t, a, http.MethodPost, piecesCall, "")
	s := &segments{t: t}
	last := ""
	for i, piece := range []string{"a", "b", "c"} {
		say <- piece
		last = s.upTo(first, int64(i+1))
	}
	second := openSSE(t, b, http.MethodGet, "", last)
	stack.loses(t, a.session, streamOf(t, last))
	say <- "d"
	toldRest(t, second, "p", s.task)
	for _, c := range []*rawClient{a, b} {
		toldRest(t, openSSE(t, c, http.MethodGet, "", last), "p", s.task)
	}
	if _, data, ok := first.event(); ok {
		t.Errorf("the replica that was lost went on with %s", data)
	}
	for s.last < 4 {
		s.pullAt(b)
	}
	// So it goes with the stream of a tasks/result, though there was nothing on it yet.
	pull := openSSE(t, a, http.MethodPost, fmt.Sprintf(`{"jsonrpc":"2.0","id":"q","method":"tasks/result","params":{"taskId":%q,"lastSeqNr":4,"stream":{}}}`, s.task), "")
	primed, data, ok := pull.event()
	if !ok || data != "" {
		t.Fatalf("no event to resume from: %q %s", primed, data)
	}
	third := openSSE(t, b, http.MethodGet, "", primed)
	stack.loses(t, a.session, streamOf(t, primed))
	toldRest(t, third, "q", s.task)
	say <- ""
	for !s.over {
		s.pullAt(b)
	}
	s.mergedAt(a)
}

// TestStreamLostPulled: a client that fetches blocks after its stream has lost its replica
// does not get them on that stream as well; it ends.
func TestStreamLostPulled(t *testing.T) {
	stack, say, a, b := streamingReplicas(t)
	first := openSSE(t, a, http.MethodPost, piecesCall, "")
	s := &segments{t: t}
	say <- "a"
	last := s.upTo(first, 1)
	key := stack.store.Keys("tg:*:m:" + a.session)[0]
	keeper, _ := stack.store.Do("hget", key, "s:"+legacy.PushName(s.task)).(string)
	stack.store.Do("del", "tg:alive:"+keeper)
	s.pullAt(b)
	say <- "b"
	for s.last < 2 {
		s.pullAt(b)
	}
	if _, data, ok := first.event(); ok {
		t.Errorf("on the stream came %s", data)
	}
	second := openSSE(t, b, http.MethodGet, "", last)
	if _, data, ok := second.event(); ok {
		t.Errorf("on the stream that was resumed came %s", data)
	}
	say <- ""
	for !s.over {
		s.pullAt(b)
	}
	s.mergedAt(a)
}

// TestStreamWithoutItsLog: a block that the log of a stream does not take is not sent, and
// nothing follows on the stream but how to get the rest: a client that resumes it would
// miss that block.
func TestStreamWithoutItsLog(t *testing.T) {
	stack, say, a, b := streamingReplicas(t)
	first := openSSE(t, a, http.MethodPost, piecesCall, "")
	s := &segments{t: t}
	say <- "a"
	last := s.upTo(first, 1)
	log := ""
	for _, key := range stack.store.Keys("tg:*:" + a.session) {
		if kind, _ := stack.store.Do("type", key).(string); kind == "list" {
			log = key
		}
	}
	stack.store.Do("rename", log, "aside")
	stack.store.Do("set", log, "no list")
	say <- "b"
	toldRest(t, first, "p", s.task)
	stack.store.Do("rename", "aside", log)
	toldRest(t, openSSE(t, b, http.MethodGet, "", last), "p", s.task)
	say <- ""
	for !s.over {
		s.pullAt(b)
	}
	s.mergedAt(a)
}

// TestStreamStopped: a replica that stops ends its pushes, and says how to get the rest.
func TestStreamStopped(t *testing.T) {
	stack, say, a, b := streamingReplicas(t)
	first := openSSE(t, a, http.MethodPost, piecesCall, "")
	s := &segments{t: t}
	say <- "a"
	last := s.upTo(first, 1)
	closing := make(chan error, 1)
	go func() { closing <- stack.gates[0].Close(context.Background()) }()
	toldRest(t, first, "p", s.task)
	if err := wiretest.Await(t, closing, "the end of its streams"); err != nil {
		t.Error(err)
	}
	toldRest(t, openSSE(t, b, http.MethodGet, "", last), "p", s.task)
	say <- "b" // its call runs on
	for s.last < 2 {
		s.pullAt(b)
	}
	say <- ""
	for !s.over {
		s.pullAt(b)
	}
	s.mergedAt(b)
}

// TestLastWords: of the requests of a lost stream those are answered that have no answer
// in its log.
func TestLastWords(t *testing.T) {
	task := []byte(`{"jsonrpc":"2.0","id":"a","result":{"task":{"taskId":"t"}}}`)
	more := []byte(`{"jsonrpc":"2.0","id":"a","result":{"partial-content":[],"isComplete":false}}`)
	end := []byte(`{"jsonrpc":"2.0","id":"a","result":{"partial-content":[],"isComplete":true}}`)
	fails := []byte(`{"jsonrpc":"2.0","id":2,"error":{"code":-32603,"message":"no"}}`)
	asks := []byte(`{"jsonrpc":"2.0","id":"a","method":"roots/list"}`)
	const streams, waits = `["a",{"task":"t","streams":true}]`, `["a",{"task":"t"}]`
	for name, c := range map[string]struct {
		note string
		had  [][]byte
		want []string // ids, or texts
	}{
		"none":             {`[]`, nil, nil},
		"of no release":    {`{}`, nil, nil},
		"all":              {`["a",2]`, [][]byte{asks}, []string{`"a"`, `2`}},
		"one":              {`["a",2]`, [][]byte{fails, []byte("nonsense")}, []string{`"a"`}},
		"waits":            {waits, nil, []string{"was lost"}},
		"answered":         {waits, [][]byte{task}, nil},
		"streams":          {streams, [][]byte{asks}, []string{"lastSeqNr"}},
		"streams for long": {streams, [][]byte{task, more}, []string{"lastSeqNr"}},
		"streamed":         {streams, [][]byte{task, more, end}, nil},
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
