package legacy_test

import (
	"bufio"
	"bytes"
	"context"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"taskgate/gateway/config"
	"taskgate/gateway/legacy"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/internal/wiretest"
	"taskgate/shim"
)

// sseClient reads the events of one response.
type sseClient struct {
	t     *testing.T
	leave context.CancelFunc
	resp  *http.Response
	lines chan string
}

// openSSE sends a request whose answer is a stream.
func openSSE(t *testing.T, c *rawClient, method, body, last string) *sseClient {
	t.Helper()
	ctx, leave := context.WithCancel(t.Context())
	header := []string{mcp.HeaderLastEventID, last}
	if last == "" {
		header = nil
	}
	resp := wiretest.Must(c.do(ctx, method, body, header...))(t)
	s := &sseClient{t: t, leave: leave, resp: resp, lines: make(chan string, 1000)}
	t.Cleanup(s.close)
	go func() { // ends with the body
		defer close(s.lines)
		for sc := bufio.NewScanner(resp.Body); sc.Scan(); {
			s.lines <- sc.Text()
		}
	}()
	return s
}

func (s *sseClient) wantStatus(status int) {
	s.t.Helper()
	if s.resp.StatusCode != status {
		s.t.Errorf("the stream: %s, want %d", s.resp.Status, status)
	}
}

// takeStream opens the GET stream of the session, once no other one is in the way.
func (c *rawClient) takeStream() (get *sseClient) {
	c.t.Helper()
	waitUntil(c.t, "the GET stream is free", func() bool {
		if get = openSSE(c.t, c, http.MethodGet, "", ""); get.resp.StatusCode == http.StatusConflict {
			get.close()
			return false
		}
		return true
	})
	if get.resp.StatusCode != http.StatusOK {
		c.t.Fatalf("the GET stream: %s", get.resp.Status)
	}
	return get
}

func (s *sseClient) close() {
	s.leave()
	s.resp.Body.Close()
	for range s.lines {
		continue
	}
}

// event returns the id and the data of the next event; false at the end.
func (s *sseClient) event() (id, data string, ok bool) {
	s.t.Helper()
	return s.eventUntil(time.After(wiretest.Patience))
}

// eventUntil is event with an end of its patience.
func (s *sseClient) eventUntil(give <-chan time.Time) (id, data string, ok bool) {
	s.t.Helper()
	seen := false
	for {
		select {
		case line, open := <-s.lines:
			switch {
			case !open:
				return "", "", false
			case line == "" && seen:
				return id, data, true
			case strings.HasPrefix(line, "id: "):
				id, seen = line[4:], true
			case strings.HasPrefix(line, "data:"):
				data, seen = strings.TrimSpace(line[5:]), true
			}
		case <-give:
			s.t.Fatal("timed out: an event")
		}
	}
}

// until reads events until it is this one.
func (s *sseClient) until(what string, is func(data string) bool) (id, data string) {
	s.t.Helper()
	for give := time.After(wiretest.Patience); ; {
		id, next, ok := s.eventUntil(give)
		if !ok {
			s.t.Fatalf("the stream ended before %s: %s", what, data)
		}
		if data = next; is(data) {
			return id, data
		}
	}
}

// rest is all that comes until the end.
func (s *sseClient) rest() (said string) {
	s.t.Helper()
	for _, data, ok := s.event(); ok; _, data, ok = s.event() {
		said += data
	}
	return said
}

// message is the next event that has a message: those before it are for a client that resumes.
func (s *sseClient) message() (id, data string, ok bool) {
	s.t.Helper()
	for ok = true; ok && data == ""; {
		id, data, ok = s.event()
	}
	return id, data, ok
}

func resumeSoon(c *config.Config) { c.ResumeAfter = 20 * time.Millisecond }

const waitCall = `{"jsonrpc":"2.0","id":"w1","method":"tools/call","params":{"name":"wait","arguments":{"a":1}}}`

// TestReplicasResume: a client whose connection broke gets the answer of its call from
// the other replica, also when that comes later, and again when it asks again.
func TestReplicasResume(t *testing.T) {
	stack, a, b := newPair(t, resumeSoon, "")
	first := openSSE(t, a, http.MethodPost, waitCall, "")
	primed, data, ok := first.event()
	if primed == "" || data != "" || !ok {
		t.Fatalf("no event to resume from: %q %q %t", primed, data, ok)
	}
	wiretest.Await(t, stack.session.started, "the tool")
	first.close()
	second := openSSE(t, b, http.MethodGet, "", primed)
	stack.session.proceed <- struct{}{}
	id, data, ok := second.message()
	if !ok || id == "" || id == primed || !strings.Contains(data, `"id":"w1"`) || !strings.Contains(data, `wait {\"a\":1}`) {
		t.Errorf("resumed: %q %s", id, data)
	}
	if _, data, ok := second.event(); ok {
		t.Errorf("after the answer: %s", data)
	}
	a.takeStream() // a client that has none gets it in place of an answer that it has
	for at, want := range map[string]bool{primed: true, id: false} {
		again := openSSE(t, b, http.MethodGet, "", at)
		if _, data, ok := again.message(); ok != want || ok && !strings.Contains(data, `"id":"w1"`) {
			t.Errorf("after %s: %t %s", at, ok, data)
		}
		again.close()
	}
	openSSE(t, b, http.MethodGet, "", "unknown.1").wantStatus(http.StatusNoContent)
}

// TestReplicasResumeForgotten: a client that was away when its answer came hears that this is lost, at either replica,
// where Redis has come back as it was before that.
func TestReplicasResumeForgotten(t *testing.T) {
	for i, where := range []string{"the same replica", "the other replica"} {
		t.Run(where, func(t *testing.T) {
			stack, a, _ := newPair(t, resumeSoon, "")
			first := openSSE(t, a, http.MethodPost, waitCall, "")
			primed, _, _ := first.event()
			wiretest.Await(t, stack.session.started, "the tool")
			first.close()
			goBack := stack.snapshot(a.session)
			stack.session.proceed <- struct{}{}
			again := openSSE(t, a, http.MethodGet, "", primed)
			again.end("w1")
			if _, data, ok := again.event(); ok {
				t.Errorf("after the answer: %s", data)
			}
			goBack()
			resumed := openSSE(t, stack.on(t, i, a), http.MethodGet, "", primed)
			if data := resumed.end("w1"); !strings.Contains(data, "the answer to this call was lost") {
				t.Errorf("resumed: %s", data)
			}
			if _, data, ok := resumed.event(); ok {
				t.Errorf("after the error: %s", data)
			}
		})
	}
}

// TestReplicasResumeLost: the answer to a call whose replica has died is an error, and
// so is told. It is the one answer: a replica that was only slow has lost the stream.
func TestReplicasResumeLost(t *testing.T) {
	stack, a, _ := newPair(t, resumeSoon, "")
	first := openSSE(t, a, http.MethodPost, waitCall, "")
	primed, _, _ := first.event()
	wiretest.Await(t, stack.session.started, "the tool")
	silence := func() { // as if it had not been heard of
		stack.store.Do("hdel", "tg:replicas", "a")
	}
	silence()
	ctx, stop := context.WithCancel(t.Context())
	var silencing sync.WaitGroup
	defer silencing.Wait()
	defer stop()
	silencing.Go(func() {
		for ctx.Err() == nil {
			silence()
		}
	})
	second := openSSE(t, stack.on(t, 1, a), http.MethodGet, "", primed)
	if _, data, ok := second.message(); !ok || !strings.Contains(data, `"id":"w1"`) || !strings.Contains(data, `-32603`) {
		t.Errorf("resumed: %s", data)
	}
	stop()
	stack.session.proceed <- struct{}{}
	if _, data, ok := first.event(); ok {
		t.Errorf("the replica lives, and answers as well: %s", data)
	}
	for i := range 2 {
		again := openSSE(t, stack.on(t, i, a), http.MethodGet, "", primed)
		said := again.rest()
		if strings.Count(said, `"id":"w1"`) != 1 || !strings.Contains(said, `-32603`) {
			t.Errorf("resumed again: %s", said)
		}
	}
}

// A call that ends while the store is away is answered on the stream that its client has
// resumed at another replica, once the store is back: its own one has not died.
func TestResumeEndedWhileStoreAway(t *testing.T) {
	for name, room := range map[string]bool{"answered": true, "no room for the answer": false} {
		inBubble(t, name, func(t *testing.T) {
			w, resume := resumedWorld(t, mcp.MethodToolsCall)
			if !room {
				tableOf(w.a.Gateway).FillLate()
			}
			resumed := resume()
			w.sessions.away.Store(true)
			wiretest.Wait(70 * time.Second)
			if resumed.ended() {
				t.Fatal("the resumed stream has ended")
			}
			w.sessions.away.Store(false)
			wiretest.Wait(legacy.StoreAgain + legacy.ResumeCheck)
			if !resumed.ended() {
				t.Fatal("the resumed stream waits on")
			}
			if got := len(resumed.said()) == 1; got != room {
				t.Errorf("answered: %t", got)
			}
		})
	}
}

// resumedWorld has a client go that waits for a call, or for a task, half a second after it was made: that a connection
// breaks in the first five seconds was the end of a call once. With resume it comes back for the answer, at the other
// replica.
func resumedWorld(t *testing.T, method string) (w *world, resume func() *hearing) {
	t.Helper()
	w = newDraftWorld(t, "")
	w.config.ResumeAfter = config.Default().ResumeAfter
	params := `{"name":"plain"}`
	if method == mcp.MethodTasksResult {
		params = `{"taskId":"` + string(w.c.call(w.a, "plain")) + `"}`
	}
	request := w.c.ask(w.a, method, params)
	wiretest.Wait(500 * time.Millisecond)
	request.leave()
	synctest.Wait()
	return w, func() *hearing { return w.resume(w.b, request) }
}

// A client that comes back for an answer gets it, or hears that it is lost, whatever the store has forgotten, and once:
// also where the store was away just when its log was read, or was so slow that it comes back twice, or before the
// replica has said that it was left.
func TestResumeForgotten(t *testing.T) {
	for name, play := range map[string]func(t *testing.T, w *world, resume func() *hearing){
		"the store was away when the answer came, and is back without the stream": func(t *testing.T, w *world, resume func() *hearing) {
			w.sessions.away.Store(true)
			w.sessions.unknown.Store(true)
			wiretest.Wait(70 * time.Second)
			w.sessions.away.Store(false)
			wiretest.Wait(2 * legacy.StoreAgain)
			w.sessions.unknown.Store(false)
			resumed := resume()
			wiretest.Wait(legacy.ResumeCheck)
			resumed.wantOnly(`"text":"one"`)
		},
		"the store has forgotten the answer before it is heard": func(t *testing.T, w *world, resume func() *hearing) {
			resumed := resume()
			w.sessions.forgets.Store(true)
			wiretest.Wait(70 * time.Second)
			if resumed.ended() {
				t.Fatalf("it has heard %s", resumed.said())
			}
			w.sessions.forgets.Store(false)
			wiretest.Wait(legacy.AskAgain + legacy.ResumeCheck)
			resumed.wantOnly("the answer to this call was lost")
		},
		"the answer waits for the store": func(t *testing.T, w *world, resume func() *hearing) {
			w.sessions.away.Store(true)
			wiretest.Wait(70*time.Second + legacy.StoreAgain/2)
			w.sessions.away.Store(false)
			resumed := resume()
			synctest.Wait()
			if resumed.ended() {
				t.Fatal("the answer did not wait for the store")
			}
			wiretest.Wait(legacy.StoreAgain + legacy.ResumeCheck)
			resumed.wantOnly(`"result"`)
		},
		"a result whose log cannot be read at first": func(_ *testing.T, w *world, resume func() *hearing) {
			w.sessions.unread.Store(true)
			refused := resume()
			wiretest.Wait(5 * time.Second)
			refused.wantOnly("not available")
			w.sessions.unread.Store(false)
			again := resume()
			wiretest.Wait(70 * time.Second)
			again.wantOnly(`"text":"one"`)
		},
		"a result, twice at once": func(_ *testing.T, w *world, resume func() *hearing) {
			slow := make(chan struct{})
			w.sessions.held <- slow
			resume()
			again := resume()
			close(slow)
			wiretest.Wait(70 * time.Second)
			again.wantOnly(`"text":"one"`)
		},
		"a result that is still being left": func(_ *testing.T, w *world, _ func() *hearing) {
			request := w.c.ask(w.a, mcp.MethodTasksResult, `{"taskId":"`+string(w.c.call(w.a, "plain"))+`"}`)
			wiretest.Wait(2 * time.Second)
			slow := make(chan struct{})
			w.sessions.leaving <- slow
			request.leave()
			synctest.Wait()
			again := w.resume(w.a, request)
			wiretest.Wait(time.Second / 2)
			close(slow)
			wiretest.Wait(70 * time.Second)
			again.wantOnly(`"text":"one"`)
		},
	} {
		inBubble(t, name, func(t *testing.T) {
			method := mcp.MethodToolsCall
			if strings.HasPrefix(name, "a result") {
				method = mcp.MethodTasksResult
			}
			w, resume := resumedWorld(t, method)
			play(t, w, resume)
		})
	}
}

// A client that resumes an answer which waits hears that messages may be missing, unless it wants no warnings.
func TestResumeMissing(t *testing.T) {
	for level, told := range map[string]bool{"warning": true, "error": false} {
		inBubble(t, level, func(t *testing.T) {
			w, resume := resumedWorld(t, mcp.MethodTasksResult)
			if said := w.c.ask(w.a, mcp.MethodSetLevel, `{"level":"`+level+`"}`).quit(); len(said) != 1 || !strings.Contains(string(said[0]), `"result"`) {
				t.Fatalf("the level: %s", said)
			}
			w.sessions.missing.Store(math.MaxInt64)
			resumed := resume()
			wiretest.Wait(time.Second)
			said := bytes.Join(resumed.said(), nil)
			if got := bytes.Contains(said, []byte("messages may be missing")); got != told {
				t.Errorf("heard %s", said)
			}
			resumed.leave()
		})
	}
}

// A GET stream that ends is not in the way of the next one at another replica, though the store was away then, or has
// opened its log and the replica does not know.
func TestStandingEnds(t *testing.T) {
	for name, away := range map[string]bool{"the store is away": true, "opened unheard": false} {
		inBubble(t, name, func(t *testing.T) {
			w := newDraftWorld(t, takePartial)
			if !away {
				w.sessions.unheard.Store(1)
			}
			first := w.c.begin(w.a, "")
			if w.sessions.unheard.Load() > 0 {
				t.Fatal("nothing was opened")
			}
			w.sessions.away.Store(away)
			first.quit()
			if away {
				wiretest.Wait(time.Minute)
				w.sessions.away.Store(false)
				wiretest.Wait(legacy.StoreAgain)
			}
			next := w.c.begin(w.b, "")
			if next.ended() {
				t.Errorf("refused with %d", next.w.status)
			}
			next.quit()
		})
	}
}

// What a server says while the store is away reaches a GET stream that is open where it is
// heard, young or not.
func TestStandingHearsWhileStoreAway(t *testing.T) {
	for name, age := range map[string]time.Duration{"young": 0, "kept": time.Minute} {
		inBubble(t, name, func(t *testing.T) {
			w := newDraftWorld(t, takePartial)
			get := w.c.begin(w.a, "")
			wiretest.Wait(age)
			w.sessions.away.Store(true)
			w.a.up.say(shim.Notification{Method: mcp.NotifyToolsListChanged})
			wiretest.Wait(time.Second)
			w.sessions.away.Store(false)
			w.a.up.say(shim.Notification{Method: mcp.NotifyPromptsListChanged})
			wiretest.Wait(time.Second)
			if said := get.said(); len(said) != 2 {
				t.Errorf("heard %s", said)
			}
			get.quit()
		})
	}
}

// TestReplicasShortAnswers: an answer that comes soon has no id, and the store never
// hears of it. A client of an older version is not sent an event without data.
func TestReplicasShortAnswers(t *testing.T) {
	stack, a, _ := newPair(t, nil, "")
	s := openSSE(t, a, http.MethodPost, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"steps","_meta":{"progressToken":7}}}`, "")
	n := 0
	for id, data, ok := s.event(); ok; id, data, ok = s.event() {
		if n++; id != "" || data == "" {
			t.Errorf("event %q %s", id, data)
		}
	}
	if n < 4 {
		t.Errorf("%d events", n)
	}
	if keys := append(stack.store.Keys("*:log:*"), stack.store.Keys("*:streams:*")...); len(keys) != 0 {
		t.Errorf("stored %v", keys)
	}
}

// A stream can be resumed again though nothing was said since it was resumed before.
func TestResumeTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newDraftWorld(t, "")
		w.config.ResumeAfter = time.Second
		task := w.c.call(w.a, "plain")
		streams := map[string]*hearing{
			"a call":                    w.c.ask(w.a, mcp.MethodToolsCall, `{"name":"plain"}`),
			"an answer that waits":      w.c.ask(w.a, mcp.MethodTasksResult, `{"taskId":"`+string(task)+`"}`),
			"the stream of the session": w.c.begin(w.a, ""),
		}
		wiretest.Wait(2 * time.Second)
		for range 2 {
			for name, s := range streams {
				last := s.lastID()
				if last == "" {
					t.Fatalf("%s cannot be resumed", name)
				}
				s.leave() // a call goes on
				synctest.Wait()
				streams[name] = w.c.begin(w.b, "", mcp.HeaderLastEventID, last)
			}
			wiretest.Wait(time.Second)
		}
		wiretest.Wait(70 * time.Second)
		for name, s := range streams {
			if len(s.quit()) == 0 {
				t.Errorf("%s: nothing came", name)
			}
		}
	})
}

// Messages that wait for a client are sent each, also in the same words: a server may mean them
// twice. Only changes of one list are told once.
func TestWaitingMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newDraftWorld(t, "")
		w.c.begin(w.a, "").quit()
		logged := `{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"error","data":"again"}}`
		tools := `{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`
		prompts := `{"jsonrpc":"2.0","method":"notifications/prompts/list_changed"}`
		for _, message := range []string{logged, tools, logged, prompts, tools, prompts} {
			wiretest.Must(w.sessions.Post(t.Context(), w.c.session, legacy.GetStream, []byte(message)))(t)
		}
		next := w.c.begin(w.a, "")
		wiretest.Wait(time.Second)
		got := string(bytes.Join(next.quit(), []byte("\n")))
		if want := strings.Join([]string{logged, tools, logged, prompts}, "\n"); got != want {
			t.Errorf("heard %s\nwant %s", got, want)
		}
	})
}

// A client whose stream breaks after the first progress of the gateway's own, and that resumes it at
// another replica, hears more of it there, and the answer.
func TestResumedHearsProgress(t *testing.T) {
	for _, c := range []struct{ name, version, method string }{
		{"call", mcp.Version20250618, mcp.MethodToolsCall},
		{"call", mcp.Version20251125, mcp.MethodToolsCall},
		{"result", mcp.Version20251125, mcp.MethodTasksResult},
	} {
		inBubble(t, c.name+" "+c.version, func(t *testing.T) {
			w := newDraftWorld(t, "")
			w.config.ResumeAfter = 5 * time.Second
			w.c = newClient(t, w.a, "", c.version)
			params := `{"name":"plain","_meta":{"progressToken":"p"}}`
			if c.method == mcp.MethodTasksResult {
				made := w.c.do(w.a, mcp.MethodToolsCall, `{"name":"plain","task":{}}`)
				id, _ := jsonrpc.GetString(made, "task", "taskId")
				params = `{"taskId":"` + id + `","_meta":{"progressToken":"p"}}`
			}
			first := w.c.ask(w.a, c.method, params)
			wiretest.Wait(28 * time.Second)
			primes := slices.ContainsFunc(first.events(), func(e heardEvent) bool { return e.data == "" })
			if primes != (c.version == mcp.Version20251125) { // clients of older versions would stumble
				t.Errorf("there is an event without data: %t", primes)
			}
			first.leave()
			wiretest.Wait(time.Second)
			resumed := w.c.begin(w.b, "", mcp.HeaderLastEventID, first.lastID())
			wiretest.Wait(time.Minute)
			if !resumed.ended() {
				t.Error("the resumed stream is open")
			}
			said := slices.Concat(first.said(), resumed.said())
			var heard []string
			for _, m := range said {
				token, _ := jsonrpc.GetString(m, "params", "progressToken")
				n, _ := jsonrpc.Get(m, "params", "progress")
				heard = append(heard, strings.TrimSpace(token+" "+string(n)))
			}
			if want := []string{"p 0.000001", "p 0.000002", ""}; !slices.Equal(heard, want) || !strings.Contains(string(said[len(said)-1]), `"text":"one"`) {
				t.Errorf("heard %s", said)
			}
		})
	}
}

// A client that was away while the store was as well hears, where its stream goes on, that messages may be missing:
// what came then is in no log.
func TestResumedHearsOfMissingProgress(t *testing.T) {
	for name, c := range map[string]struct {
		level string
		away  time.Duration // the store
		last  int           // the progress that is heard last
		want  []string
	}{
		"warned":            {"info", 5 * time.Second, len(somePieces), []string{"note", "gap", "answer"}},
		"wants no warnings": {"error", 5 * time.Second, len(somePieces), []string{"gap", "answer"}},
		"until the end":     {"info", 40 * time.Second, 15, []string{"note", "answer"}},
	} {
		inBubble(t, name, func(t *testing.T) {
			w := newDraftWorld(t, "")
			w.config.ResumeAfter = time.Second
			w.c.do(w.a, mcp.MethodSetLevel, `{"level":"`+c.level+`"}`)
			first := w.c.ask(w.a, mcp.MethodToolsCall, `{"name":"some","_meta":{"progressToken":"p"}}`)
			wiretest.Wait(10500 * time.Millisecond)
			first.leave()
			wiretest.Wait(5 * time.Second)
			w.sessions.away.Store(true)
			wiretest.Wait(c.away)
			w.sessions.away.Store(false)
			wiretest.Wait(5 * time.Second)
			resumed := w.c.begin(w.b, "", mcp.HeaderLastEventID, first.lastID())
			wiretest.Wait(45 * time.Second)
			var heard []string
			last := 0
			for _, m := range slices.Concat(first.said(), resumed.said()) {
				raw, ok := jsonrpc.Get(m, "params", "progress")
				no, _ := strconv.Atoi(string(raw))
				switch {
				case ok && no != last+1:
					heard = append(heard, "gap")
				case strings.Contains(string(m), "messages may be missing"):
					heard = append(heard, "note")
				case !ok && strings.Contains(string(m), `"text":"done"`):
					heard = append(heard, "answer")
				}
				if ok {
					last = no
				}
			}
			if !slices.Equal(heard, c.want) || last != c.last {
				t.Errorf("heard %q up to %d, want %q up to %d", heard, last, c.want, c.last)
			}
		})
	}
}
