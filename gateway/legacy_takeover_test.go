package gateway

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/shim"
)

// streamOf is the name of the stream that an event belongs to.
func streamOf(t *testing.T, eventID string) string {
	t.Helper()
	name, _, ok := parseEventID(eventID)
	if !ok {
		t.Fatalf("no event id: %q", eventID)
	}
	return name
}

// loses has the replica that keeps a stream, and the mark of the push of a task, count as
// lost until another one has taken both. It lives, and says so now and then, as one that
// was frozen for a while.
func (r *legacyReplicas) loses(t *testing.T, session, stream string, id shim.ID) {
	t.Helper()
	key := r.store.Keys("tg:*:m:" + session)[0]
	keeper := func(stream string) string {
		name, _ := r.store.Do("hget", key, "s:"+stream).(string)
		return name
	}
	before := keeper(stream)
	if before == "" {
		t.Fatalf("nobody keeps %s", stream)
	}
	settled(t, "another replica has the stream", func() bool {
		r.store.Do("del", "tg:alive:"+before)
		r.store.Do("publish", strings.Replace(key, ":m:", ":lev:", 1), session+" 0") // or who follows looks later
		return keeper(stream) != before && keeper(pushName(id)) != before
	})
}

// TestTakeOver: a push of segments goes on at the replica where its client resumes it,
// once its own is lost: on the same stream, without gap or repeat, though the one before
// still says what it has to say (A10).
func TestTakeOver(t *testing.T) {
	stack, say, a, b := streamingReplicas(t)
	first := openSSE(t, a, http.MethodPost, piecesCall, "")
	s := &segments{t: t}
	last := ""
	for i, piece := range []string{"a", "b", "c"} {
		say <- piece
		last = s.upTo(first, int64(i+1))
	}
	// One resumes with all that there was, one from before the second piece.
	clients := []*segments{s, {t: t}}
	clients[1].task, clients[1].last, clients[1].blocks = s.task, 1, s.blocks[:1:1]
	second := openSSE(t, b, http.MethodGet, "", last)
	early := openSSE(t, b, http.MethodGet, "", beforePiece(t, b, last, 2))
	stack.loses(t, a.session, streamOf(t, last), s.task)
	say <- "d"
	s.upTo(second, 4)
	clients[1].upTo(early, 4)
	if _, data, ok := first.event(); ok {
		t.Errorf("the replica that was lost went on with %s", data)
	}
	// It may be resumed from there, too, and again lose its replica.
	say <- "e"
	last = s.upTo(second, 5)
	second.close()
	early.close()
	third := openSSE(t, a, http.MethodGet, "", last)
	stack.loses(t, a.session, streamOf(t, last), s.task)
	say <- "f"
	s.upTo(third, 6)
	say <- ""
	s.upTo(third, 99)
	if _, data, ok := third.event(); ok {
		t.Errorf("after the end came %s", data)
	}
	s.mergedAt(b)
	if fmt.Sprint(len(s.blocks)) != "7" { // the result has one more
		t.Errorf("%d blocks", len(s.blocks))
	}
	if got := stack.store.Keys("tg:*:m:" + a.session); len(got) != 1 {
		t.Errorf("logs %v", got)
	}
}

// beforePiece is the id of the event before the one with this block, as the log has it.
func beforePiece(t *testing.T, c *rawClient, last string, no int64) string {
	t.Helper()
	name := streamOf(t, last)
	s := openSSE(t, c, http.MethodGet, "", eventID(name, 0))
	defer s.close()
	before := eventID(name, 0)
	for {
		id, data, ok := s.event()
		if !ok {
			t.Fatalf("no block %d", no)
		}
		if strings.Contains(data, fmt.Sprintf(`"seqNr":%d`, no)) {
			return before
		}
		before = id
	}
}

// TestTakeOverPulled: a client that has fetched blocks since its stream lost its replica
// does not get them on that stream as well; it ends.
func TestTakeOverPulled(t *testing.T) {
	stack, say, a, b := streamingReplicas(t)
	first := openSSE(t, a, http.MethodPost, piecesCall, "")
	s := &segments{t: t}
	say <- "a"
	last := s.upTo(first, 1)
	mark := pushName(s.task)
	lost := func() { // for as long as it takes
		key := stack.store.Keys("tg:*:m:" + a.session)[0]
		for _, name := range []string{mark, streamOf(t, last)} {
			if keeper, _ := stack.store.Do("hget", key, "s:"+name).(string); keeper != "" {
				stack.store.Do("del", "tg:alive:"+keeper)
			}
		}
	}
	lost()
	s.pullAt(b)
	say <- "b"
	for s.last < 2 {
		s.pullAt(b)
	}
	lost()
	second := openSSE(t, b, http.MethodGet, "", last)
	if _, data, ok := second.event(); ok {
		t.Errorf("on the stream came %s", data)
	}
	say <- ""
	for !s.over {
		s.pullAt(b)
	}
	s.mergedAt(a)
}

// TestTakeOverFirst: a stream is gone on with although there was nothing on it yet, also
// one that a tasks/result has begun.
func TestTakeOverFirst(t *testing.T) {
	stack, say, a, b := streamingReplicas(t)
	s := &segments{t: t}
	opened := openSSE(t, a, http.MethodPost, piecesCall, "")
	say <- "a"
	s.upTo(opened, 1)
	pull := openSSE(t, a, http.MethodPost, fmt.Sprintf(`{"jsonrpc":"2.0","id":"q","method":"tasks/result","params":{"taskId":%q,"lastSeqNr":1,"stream":{}}}`, s.task), "")
	primed, data, ok := pull.event()
	if !ok || data != "" {
		t.Fatalf("no event to resume from: %q %s", primed, data)
	}
	second := openSSE(t, b, http.MethodGet, "", primed)
	stack.loses(t, a.session, streamOf(t, primed), s.task)
	say <- "b"
	s.upTo(second, 2)
	say <- ""
	s.upTo(second, 99)
	s.mergedAt(b)
}

// TestTakeOverAsks: a question that the stream has had is not asked again by the replica
// that goes on with it, and the next one is.
func TestTakeOverAsks(t *testing.T) {
	stack := newLegacyReplicas(t, nil)
	withQuestions(stack.server)
	a := stack.on(t, 0, nil)
	a.initializeDrafts(`"elicitation":{},"roots":{},"sampling":{},` + allModes)
	b := stack.on(t, 1, a)
	first := openSSE(t, a, http.MethodPost, strings.Replace(piecesCall, "pieces", "colour", 1), "")
	s := &segments{t: t}
	last := ""
	for s.task == "" {
		id, data, _ := first.event()
		if last = id; data != "" {
			s.take([][]byte{[]byte(data)})
		}
	}
	question := first.question(string(s.task))
	second := openSSE(t, b, http.MethodGet, "", last)
	stack.loses(t, a.session, streamOf(t, last), s.task)
	if again := second.question(string(s.task)); again != question {
		t.Errorf("asked %s, and now %s", question, again)
	}
	if status, body := b.post(answerBody(question, "blue")); status != http.StatusAccepted {
		t.Fatalf("answer: %d %s", status, body)
	}
	for !s.over {
		_, data, ok := second.event()
		if !ok {
			t.Fatal("the stream ended")
		}
		if method, _ := jsonrpc.GetString([]byte(data), "method"); method == mcp.MethodElicit {
			t.Errorf("asked again: %s", data)
		}
		if data != "" {
			s.take([][]byte{[]byte(data)})
		}
	}
	s.mergedAt(b)
}

// TestTakeOverLeft: a replica that stops leaves its pushes, which go on elsewhere at
// once.
func TestTakeOverLeft(t *testing.T) {
	stack, say, a, b := streamingReplicas(t)
	first := openSSE(t, a, http.MethodPost, piecesCall, "")
	s := &segments{t: t}
	say <- "a"
	last := s.upTo(first, 1)
	closing := make(chan error, 1)
	go func() { closing <- stack.gates[0].Close(context.Background()) }()
	if _, data, ok := first.event(); ok {
		t.Errorf("a replica that stops said %s", data)
	}
	if err := await(t, closing, "the end of its streams"); err != nil {
		t.Error(err)
	}
	second := openSSE(t, b, http.MethodGet, "", last)
	for i, piece := range []string{"b", "c"} {
		say <- piece // its call runs on
		s.upTo(second, int64(i+2))
	}
	say <- ""
	s.upTo(second, 99)
	s.mergedAt(b)
}

// How far a stream has come is what its log says.
func TestReached(t *testing.T) {
	const task = `"task":{"taskId":"t"}`
	for want, msgs := range map[string][]string{
		"{7 false false []}": {},
		"{7 true false []}":  {`{"jsonrpc":"2.0","id":1,"result":{` + task + `}}`},
		"{9 true false []}":  {`{"jsonrpc":"2.0","id":1,"result":{"partial-content":[{"seqNr":8},{"seqNr":9}],"isComplete":false}}`},
		"{9 true true []}":   {`{"jsonrpc":"2.0","id":1,"result":{"partial-content":[{"seqNr":9}],"isComplete":true}}`},
		"{7 true true []}":   {`{"jsonrpc":"2.0","id":1,"error":{"code":-32603,"message":"no"}}`},
		"{7 false false [k l]}": {
			`{"jsonrpc":"2.0","id":"7d0f3c1e-0a5b-4c8e-9f21-3b6a52d1c0aa/k","method":"roots/list"}`,
			`{"jsonrpc":"2.0","method":"notifications/message","params":{}}`,
			`{"jsonrpc":"2.0","id":"7d0f3c1e-0a5b-4c8e-9f21-3b6a52d1c0aa/l","method":"roots/list"}`, `nonsense`,
		},
	} {
		at := reached{seqNr: 7}
		for _, m := range msgs {
			at.read([]byte(m))
		}
		if got := fmt.Sprint(at); got != want {
			t.Errorf("%v: %s, want %s", msgs, got, want)
		}
	}
	for note, want := range map[string]bool{`["w1"]`: false, `[]`: false, `{}`: false, ``: false,
		string(pushNote{Task: "t", Request: []byte(`"r"`)}.encode()): true} {
		if _, ok := readPushNote([]byte(note)); ok != want {
			t.Errorf("%s: %t", note, ok)
		}
		if ids := noted([]byte(note)); want && ids != nil {
			t.Errorf("requests to bury: %v", ids)
		}
	}
}
