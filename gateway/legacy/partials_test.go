package legacy_test

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"taskgate/gateway/legacy"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/internal/wiretest"
	"taskgate/shim"
)

// A client that takes partial results hears all of them on its session's stream, in order and before the end (P1–P4), of tasks of its session; and tools say
// so to it (P9).
func TestLegacyPartials(t *testing.T) {
	inDraftWorld(t, takePartial, func(t *testing.T, w *world) {
		wantNoTexts(t, w.c.do(w.a, mcp.MethodToolsList, `{}`), `"never","inputSchema":{"type":"object"},"execution"`)
		wantTexts(t, w.c.do(w.a, mcp.MethodToolsList, `{}`), `"execution":{"taskSupport":"optional","streamPartial":true}`)
		live := w.c.begin(w.a, "")
		tokens, many := w.c.call(w.a, "tokens"), w.c.call(w.a, "some")
		wiretest.Wait(15 * time.Second)
		r := newPartialReader(t)
		r.take(live.said())
		if r.text[tokens] != "Once " || len(r.text[many]) < 10 {
			t.Errorf("live: %v", r.text)
		}
		seen := len(live.said())
		failed := w.c.call(w.a, "breaks")
		wiretest.Wait(45 * time.Second)
		r.take(live.said()[seen:])
		if !r.over[tokens] || !r.over[many] || r.text[tokens] != "Once upon a " || r.text[many] != somePieces || r.text[failed] != "so far " {
			t.Errorf("over: %v, read: %v", r.over, r.text)
		}
		cancelled := w.c.call(w.a, "forever")
		seen = len(live.said())
		wiretest.Wait(11 * time.Second)
		w.c.do(w.a, mcp.MethodTasksCancel, `{"taskId":"`+string(cancelled)+`"}`)
		wiretest.Wait(time.Minute)
		r.take(live.quit()[seen:])
		if r.text[cancelled] != "a" || !r.over[cancelled] {
			t.Errorf("of a cancelled task: %q, over %t", r.text[cancelled], r.over[cancelled])
		}
		// The result is the server's own (P6).
		wantTexts(t, w.c.do(w.b, mcp.MethodTasksResult, `{"taskId":"`+string(tokens)+`"}`), `"content":[{"type":"text","text":"Once upon a \u003ctime"},{"type":"text","text":"end"}]`)
	})
}

// readPieces has a client read some of what the tool "some" says, and go.
func readPieces(t *testing.T) (w *world, many shim.ID, first *hearing, r *partialReader) {
	t.Helper()
	w, r = newDraftWorld(t, takePartial), newPartialReader(t)
	first = w.c.begin(w.a, "")
	many = w.c.call(w.a, "some")
	wiretest.Wait(20 * time.Second)
	if r.take(first.quit()); r.next[many] < 15 || first.lastID() == "" {
		t.Fatalf("read %d, last event %q", r.next[many], first.lastID())
	}
	return w, many, first, r
}

// A stream that is resumed goes on where the client was, at either replica, also while the one before has not noticed
// that the client is gone; one that is not begins each task anew.
func TestLegacyPartialsResumed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, many, stream, r := readPieces(t)
		wiretest.Wait(5 * time.Second)
		for turn, g := range []*legacyServer{w.b, w.b, w.a, w.b} {
			old := stream
			stream = w.resume(g, old)
			wiretest.Wait(2 * time.Second)
			if !old.ended() {
				t.Error("the stream before goes on")
			}
			if turn%2 == 0 {
				stream.quit()
				wiretest.Wait(2 * time.Second)
			}
			r.take(stream.said())
		}
		stream.quit()
		fresh := w.c.begin(w.a, "")
		wiretest.Wait(45 * time.Second)
		anew := newPartialReader(t)
		anew.take(fresh.quit())
		anew.wantAll(many, somePieces)
		if n := len(r.text[many]); n < 30 {
			t.Errorf("resumed, it read %d pieces", n)
		}
	})
}

// A client that reads slowly misses nothing, and holds up no more than its own stream.
func TestLegacyPartialsToASlowClient(t *testing.T) {
	inDraftWorld(t, takePartial, func(t *testing.T, w *world) {
		slow := w.c.begin(w.b, "")
		slow.w.hold()
		many := w.c.call(w.a, "many")
		wiretest.Wait(100 * time.Second)
		if n := len(slow.said()); n != 0 {
			t.Fatalf("%d messages to a client that does not read", n)
		}
		logged := 0
		if _, _, err := w.sessions.Since(t.Context(), w.c.session, legacy.GetStream, 0, func(int64, []byte) { logged++ }); err != nil || logged > 16+2 {
			t.Errorf("%d messages wait for it, %v", logged, err)
		}
		slow.w.letGo()
		wiretest.Wait(10 * time.Second)
		r := newPartialReader(t)
		r.take(slow.quit())
		r.wantAll(many, allPieces)
	})
}

// A client that opted in to nothing gets not one message, nor one member, of either
// draft, whatever it asks for; nor does one that opted in get them from what others
// have made.
func TestLegacyDraftsUnasked(t *testing.T) {
	words := []string{"partial", "seqNr", `"seq"`, "isComplete", mcp.MetaFallbackMode, "streamPartial", "streaming"}
	synctest.Test(t, func(t *testing.T) {
		w := newDraftWorld(t, "")
		for _, capabilities := range []string{``, `"tasks":{}`, `"tasks":{"streaming":{},"responses":{}}`, `"tasks":{"streaming":{"partial":true},"responses":{"modes":"task"}}`} {
			w.c = newClient(t, w.a, capabilities)
			live := w.c.begin(w.b, "")
			var all [][]byte
			ask := func(method, params string) []byte {
				got := w.c.ask(w.a, method, params).one()
				all = append(all, got)
				return got
			}
			ask(mcp.MethodToolsList, `{}`)
			got := ask(mcp.MethodToolsCall, `{"name":"tokens","task":{"responseModes":["immediate","streaming"]}}`)
			id, ok := jsonrpc.GetString(got, "result", "task", "taskId")
			if !ok {
				t.Fatalf("no task: %s", got)
			}
			wiretest.Wait(20 * time.Second)
			ask(mcp.MethodTasksGet, fmt.Sprintf(`{"taskId":%q}`, id))
			wiretest.Wait(time.Minute)
			ask(mcp.MethodTasksResult, fmt.Sprintf(`{"taskId":%q,"lastSeqNr":0}`, id))
			ask(mcp.MethodTasksList, `{}`)
			plain := w.c.ask(w.a, mcp.MethodToolsCall, `{"name":"tokens","_meta":{"progressToken":"p"}}`)
			<-plain.done
			all = append(append(all, plain.said()...), live.quit()...)
			for _, text := range all {
				wantNoTexts(t, text, words...)
			}
			if len(plain.said()) != 4 {
				t.Errorf("a blocking call said %s", plain.said())
			}
		}
	})
}

// Of a task that another session of nobody in particular has made, a client hears and
// reads nothing. Of its own tasks it hears the partial results without numbers of blocks.
func TestLegacyDraftsOfOthers(t *testing.T) {
	inDraftWorld(t, takeAll, func(t *testing.T, w *world) {
		mine := w.c.begin(w.b, "")
		h, s := w.stream(t, "tokens")
		other := newClient(t, w.b, takeAll)
		theirs := other.begin(w.b, "")
		wiretest.Wait(2 * time.Minute)
		s.take(h.said()[1:]...)
		s.wantMerged(w.c, w.b)
		for _, text := range mine.quit() {
			wantNoTexts(t, text, "seqNr")
		}
		if n := len(theirs.quit()); n != 0 {
			t.Errorf("another session heard %d messages", n)
		}
	})
}

// A stream that is resumed while its log cannot be read does not know how far its client
// has come. It ends before the next partial result, or the end of its task, and repeats none (P4).
func TestLegacyPartialsWithoutTheLog(t *testing.T) {
	for name, away := range map[string]time.Duration{"its log is read once without a reply": 0, "its log is away until its task has ended": time.Minute} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, many, first, r := readPieces(t)
				w.sessions.since.Store(away == 0)
				w.sessions.gone.Store(away > 0)
				without := w.resume(w.b, first)
				wiretest.Wait(10*time.Second + away)
				r.take(without.said())
				if !without.ended() {
					t.Error("a stream without its log goes on")
				}
				w.sessions.gone.Store(false)
				next := w.resume(w.b, first)
				wiretest.Wait(45 * time.Second)
				r.take(next.quit())
				r.wantAll(many, somePieces)
			})
		})
	}
}

// The store comes back as it was before the last messages, which the stream has not sent yet. They go out all the
// same, and once.
func TestStandingForgotten(t *testing.T) {
	inDraftWorld(t, takePartial, func(t *testing.T, w *world) {
		r := newPartialReader(t)
		stream := w.c.begin(w.a, "")
		many := w.c.call(w.a, "some")
		wiretest.Wait(15 * time.Second)
		w.sessions.forgets.Store(true)
		wiretest.Wait(15 * time.Second)
		w.sessions.forgets.Store(false)
		wiretest.Wait(30 * time.Second)
		r.take(stream.quit())
		r.wantAll(many, somePieces)
	})
}

// A client that resumes its stream when the store has forgotten how far it had come hears so, and begins anew.
func TestLegacyPartialsOlderStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, many, first, _ := readPieces(t)
		w.sessions.older.Store(5)
		second := w.resume(w.b, first)
		w.sessions.older.Store(0)
		wiretest.Wait(45 * time.Second)
		said := second.quit()
		r := newPartialReader(t)
		r.take(said)
		r.wantAll(many, somePieces)
		if len(said) == 0 || !strings.Contains(string(said[0]), "messages may be missing") {
			t.Errorf("it says first: %.1s", said)
		}
	})
}

// Redis comes back without a message that another replica has put in, and that a client which counts has not had. Its
// stream ends, and the next one says so, and begins anew.
func TestLegacyPartialsGap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, many, first, r := readPieces(t)
		second := w.resume(w.b, first)
		wiretest.Wait(5 * time.Second)
		_, no, _ := legacy.ParseEventID(second.lastID())
		w.sessions.missing.Store(no + 1)
		wiretest.Wait(5 * time.Second)
		if !second.ended() {
			t.Error("the stream goes on")
		}
		r.take(second.quit())
		third := w.resume(w.a, second)
		wiretest.Wait(45 * time.Second)
		said := third.quit()
		r = newPartialReader(t)
		r.take(said)
		r.wantAll(many, somePieces)
		if len(said) == 0 || !strings.Contains(string(said[0]), "messages may be missing") {
			t.Errorf("it says first: %.1s", said)
		}
	})
}

// So does what the server says outside of calls, in order, though the store goes away right after it has forgotten;
// and so does what comes before a stream has a log, which it could not have at first.
func TestStandingHearsAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newDraftWorld(t, "")
		stream := w.c.begin(w.a, "")
		wiretest.Wait(time.Minute)
		w.says("1")
		w.sessions.forgets.Store(true)
		w.a.up.say(shim.Notification{Method: mcp.NotifyMessage, Params: []byte(`{"level":"info","data":"2"}`)})
		synctest.Wait()
		w.sessions.away.Store(true)
		w.says("3")
		w.sessions.forgets.Store(false)
		w.sessions.away.Store(false)
		w.says("4")
		heard := stream.quit()
		w.sessions.unheard.Store(2)
		stream = w.c.begin(w.a, "")
		w.says("5")
		wiretest.Wait(time.Second)
		w.says("6")
		heard = append(heard, stream.quit()...)
		if got := strings.Join(loggedIn(heard), " "); got != "1 2 3 4 5 6" {
			t.Errorf("heard %s", got)
		}
	})
}

// A client that resumes its stream just when the store is away gets all that came since, once the store is back.
func TestStandingResumedWithoutTheLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newDraftWorld(t, "")
		w.config.ResumeAfter = time.Second
		stream := w.c.begin(w.a, "")
		wiretest.Wait(time.Minute)
		w.says("on the first")
		last := stream.lastID()
		heard := stream.quit()
		w.says("between")
		w.sessions.unheard.Store(2)
		stream = w.c.begin(w.a, "", mcp.HeaderLastEventID, last)
		w.says("away")
		wiretest.Wait(5 * time.Second)
		if stream.ended() {
			heard = append(heard, stream.said()...)
			if id := stream.lastID(); id != "" {
				last = id
			}
			stream = w.c.begin(w.a, "", mcp.HeaderLastEventID, last)
		}
		w.says("back")
		if stream.lastID() == "" {
			t.Error("the stream cannot be resumed again")
		}
		heard = append(heard, stream.quit()...)
		data := loggedIn(heard)
		if got := strings.Join(data, ", "); got != "on the first, between, away, back" {
			t.Errorf("heard %s", got)
		}
	})
}

// A client that has begun anew, and was away again before anything came, resumes that
// stream: it has nothing of what went out on the streams before, and gets all of it.
func TestLegacyPartialsAnewAndResumed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, many, _, _ := readPieces(t)
		anew := w.beginBreaking()
		anew.until("id: get.")
		wiretest.Wait(5 * time.Second)
		anew.breakOff()
		id := (&hearing{t: t, w: &anew.tape}).lastID()
		r := newPartialReader(t)
		for _, g := range []*legacyServer{w.b, w.a, w.b} {
			next := w.c.begin(g, "", mcp.HeaderLastEventID, id)
			wiretest.Wait(10 * time.Second)
			r.take(next.quit())
			id = next.lastID()
		}
		r.wantAll(many, somePieces)
	})
}

// breaking is a response that takes one write for each token, and none any more once it
// is broken.
type breaking struct {
	tape
	room, broken chan struct{}
	left         chan struct{} // closed when its request is over
}

// beginBreaking opens a GET stream at the first replica.
func (w *world) beginBreaking() *breaking {
	b := &breaking{tape: tape{header: http.Header{}}, room: make(chan struct{}), broken: make(chan struct{}), left: make(chan struct{})}
	go func() {
		defer close(b.left)
		w.a.Handler().ServeHTTP(b, w.c.request(w.t.Context(), http.MethodGet, ""))
	}()
	return b
}

// breakOff breaks it, and waits until its replica has noticed.
func (w *breaking) breakOff() {
	close(w.broken)
	<-w.left
}

func (w *breaking) Write(b []byte) (int, error) {
	select {
	case <-w.room:
		return w.tape.Write(b)
	case <-w.broken:
		return 0, errors.New("the connection is broken")
	}
}

// until lets writes through until there is this text.
func (w *breaking) until(text string) {
	for {
		w.mu.Lock()
		there := bytes.Contains(w.body.Bytes(), []byte(text))
		w.mu.Unlock()
		if there {
			return
		}
		w.room <- struct{}{}
		synctest.Wait()
	}
}

// A stream breaks amid a task whose end was on its way, and is not resumed. The end was not
// sent, and so nobody has noted it: it comes on the next stream, but no partial result does,
// since the task has ended (P2), also where what was said before could not be noted.
func TestLegacyPartialsLostOnTheWay(t *testing.T) {
	for _, c := range []struct {
		begun string // what was not sent to its end
		noted bool   // the end of the task
	}{
		{`"seq":0`, true}, {`"seq":1`, true}, {`"seq":1`, false},
	} {
		inBubble(t, fmt.Sprint(c.begun, c.noted), func(t *testing.T) {
			w := newDraftWorld(t, takePartial)
			slow := w.beginBreaking()
			slow.until("open")
			tokens := w.c.call(w.a, "tokens")
			wiretest.Wait(40 * time.Second) // all that there is of it waits
			w.sessions.put.Store(!c.noted)
			slow.until(c.begun)
			wiretest.Wait(time.Minute)
			slow.breakOff()
			w.sessions.put.Store(false)
			anew := w.c.begin(w.a, "")
			wiretest.Wait(10 * time.Second)
			r := newPartialReader(t)
			r.take(anew.quit())
			if r.text[tokens] != "" || !r.over[tokens] {
				t.Errorf("%q, over %t", r.text[tokens], r.over[tokens])
			}
		})
	}
}

// A client that has begun anew after the end of a task, and was told of that end, resumes the
// stream. That it was told could not be noted, so the session still names the task, but no
// partial result comes after the end (P2).
func TestLegacyPartialsResumedAfterTheEnd(t *testing.T) {
	inDraftWorld(t, takePartial, func(t *testing.T, w *world) {
		tokens := w.c.call(w.a, "tokens")
		wiretest.Wait(40 * time.Second)
		w.sessions.put.Store(true)
		anew := w.c.begin(w.a, "")
		wiretest.Wait(10 * time.Second)
		r := newPartialReader(t)
		r.take(anew.quit())
		if !r.over[tokens] || anew.lastID() == "" {
			t.Fatalf("over %t, last event %q", r.over[tokens], anew.lastID())
		}
		w.sessions.put.Store(false)
		next := w.c.begin(w.b, "", mcp.HeaderLastEventID, anew.lastID())
		wiretest.Wait(10 * time.Second)
		for _, m := range next.quit() {
			if bytes.Contains(m, []byte(mcp.NotifyTaskPartial)) {
				t.Errorf("after the end: %s", m)
			}
		}
	})
}

// A client reads its GET stream so slowly that a task has expired before all of its
// partial results could be read. The stream ends without the end of the task, so that
// nobody takes what came for all there was. The client goes on by resuming it, at any
// replica: with what the log has, and with its other tasks; this one is unknown to it.
func TestLegacyPartialsBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := draftConfig(t)
		c.KeepAlive = 24 * time.Hour // who waits for a mutex, as one more writer would, does not let the clock go on
		w := newWorld(t).start(draftScript(), c, takePartial)
		slow := w.c.begin(w.b, "")
		created := w.c.do(w.a, mcp.MethodToolsCall, `{"name":"many","task":{"ttl":10000}}`)
		id, _ := jsonrpc.GetString(created, "task", "taskId")
		many := shim.ID(id)
		wiretest.Wait(5 * time.Second)
		slow.w.hold()
		wiretest.Wait(150 * time.Second)
		slow.w.letGo()
		<-slow.done
		r := newPartialReader(t)
		r.take(slow.said())
		if n := len(r.text[many]); n == 0 || n >= len(allPieces) || r.over[many] {
			t.Errorf("read %d pieces, over %t", n, r.over[many])
		}
		wantTexts(t, w.c.ask(w.a, mcp.MethodTasksGet, `{"taskId":"`+id+`"}`).one(), `"code":-32602`)

		next := w.c.begin(w.a, "", mcp.HeaderLastEventID, slow.lastID())
		tokens := w.c.call(w.a, "tokens")
		wiretest.Wait(time.Minute)
		r.take(next.quit())
		if r.over[many] || !r.over[tokens] || r.text[tokens] != "Once upon a " {
			t.Errorf("afterwards: over %v, read %v", r.over, r.text)
		}
	})
}
