package legacy_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
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

// A question whose stream died with its replica is asked on another stream that waits,
// though nothing else happens. It is only looked after while there is such a question.
func TestQuestionOfALostStream(t *testing.T) {
	inAskWorld(t, nil, func(t *testing.T, w *world) {
		idle := w.result(w.b, w.c.call(w.b, "forever"))
		wiretest.Wait(time.Minute)
		if n := w.sessions.looks.Swap(0); n != 0 {
			t.Errorf("looked %d times after nothing", n)
		}
		idle.leave()
		task := w.c.call(w.a, "ask")
		first := w.result(w.a, task)
		first.wantAsked("the first stream", nameQuestion(task, 0))
		second := w.result(w.b, task)
		w.sessions.looks.Swap(0)
		wiretest.Wait(10 * legacy.HolderCheck)
		second.wantAsked("while the first one lives")
		if n := w.sessions.looks.Swap(0); n < 9 || n > 12 {
			t.Errorf("looked %d times after the first stream", n)
		}
		w.sessions.opened.Range(func(stream, _ any) bool { // the replica dies
			w.sessions.lost.Store(stream, true)
			return true
		})
		wiretest.Wait(3 * legacy.HolderCheck)
		second.wantAsked("after its death", nameQuestion(task, 0))
		w.answer(w.b, nameQuestion(task, 0))
		wiretest.Wait(time.Second)
		second.wantLast("accept")
		w.sessions.looks.Swap(0)
		wiretest.Wait(time.Minute)
		if n := w.sessions.looks.Swap(0); n != 0 {
			t.Errorf("looked %d times after the end", n)
		}
		w.closeAll(first, second, idle)
	})
}

// A client whose stream ended may be about to resume it: its questions are not asked on another stream at once. They
// are if it does not come back, as soon as the store can be told that the stream is left.
func TestQuestionOfABrokenGetStream(t *testing.T) {
	inAskWorld(t, nil, func(t *testing.T, w *world) {
		for _, resumes := range []bool{true, false} {
			get := w.c.begin(w.a, "")
			task := w.c.call(w.a, "ask")
			wiretest.Wait(2 * time.Second)
			get.wantAsked("the GET stream", nameQuestion(task, 0))
			result := w.result(w.b, task)
			wiretest.Wait(legacy.HolderCheck - time.Second)
			w.sessions.away.Store(!resumes)
			get.quit()
			wiretest.Wait(3 * time.Second) // a check falls in between
			w.sessions.away.Store(false)
			result.wantAsked("on the other stream")
			if resumes {
				again := w.resume(w.b, get)
				wiretest.Wait(time.Minute)
				result.wantAsked("on the other stream, later")
				again.wantAsked("again")
				again.quit()
			} else {
				wiretest.Wait(time.Minute)
				result.wantAsked("on the other stream, later", nameQuestion(task, 0))
			}
			w.answer(w.a, nameQuestion(task, 0))
			wiretest.Wait(time.Second)
			if !result.ended() {
				t.Error("no end")
			}
			w.closeAll(result)
		}
	})
}

// A client that resumes its GET stream is asked what never got into its log, and nothing
// that did.
func TestQuestionThatIsNotInTheLog(t *testing.T) {
	inAskWorld(t, nil, func(t *testing.T, w *world) {
		get := w.c.begin(w.a, "")
		has := w.c.call(w.a, "ask")
		wiretest.Wait(2 * time.Second)
		get.wantAsked("the GET stream", nameQuestion(has, 0))
		get.quit()
		lacks := w.c.call(w.a, "ask")
		wiretest.Wait(time.Second)
		again := w.resume(w.b, get)
		wiretest.Wait(time.Minute)
		again.wantAsked("resumed", nameQuestion(lacks, 0))
		w.answer(w.a, nameQuestion(has, 0))
		w.answer(w.a, nameQuestion(lacks, 0))
		wiretest.Wait(time.Second)
		for _, id := range []shim.ID{has, lacks} {
			if got := string(w.c.do(w.a, mcp.MethodTasksGet, `{"taskId":"`+string(id)+`"}`)); !strings.Contains(got, "completed") {
				t.Errorf("%s: %s", id, got)
			}
		}
		w.closeAll(again)
	})
}

// A question is asked once, on whichever stream, also where the store was away for a moment, or
// took the question and could not say so any more.
func TestQuestionWhileTheStoreIsAway(t *testing.T) {
	streams := map[string]func(w *world) *hearing{
		"call":         func(w *world) *hearing { return w.c.ask(w.a, mcp.MethodToolsCall, `{"name":"ask"}`) },
		"tasks/result": func(w *world) *hearing { return w.result(w.a, w.c.call(w.b, "ask")) },
		"GET": func(w *world) *hearing {
			get := w.c.begin(w.a, "")
			w.c.call(w.b, "ask")
			return get
		},
	}
	faults := map[string]func(*faultySessions){
		"no stream is opened": func(f *faultySessions) { f.unopened.Store(2) },
		"the reply is lost":   func(f *faultySessions) { f.mute.Store(2) },
	}
	for where, begin := range streams {
		for what, fault := range faults {
			inBubble(t, where+"/"+what, func(t *testing.T) {
				w := newAskWorld(t, nil)
				fault(w.sessions)
				first := begin(w)
				wiretest.Wait(10 * time.Second)
				asked := first.asked()
				if len(asked) != 1 {
					t.Fatalf("asked %v", asked)
				}
				w.answer(w.b, asked[0])
				wiretest.Wait(5 * time.Second)
				if said := first.said(); where != "GET" && !strings.Contains(string(said[len(said)-1]), "accept") {
					t.Errorf("the end: %s", said)
				}
				first.wantAsked("in the end", asked...)
				w.closeAll(first)
			})
		}
	}
}

// A question that is in the log, but never went out because the store's answer was lost and
// the wait was over then, is asked in the next wait.
func TestQuestionAtTheEndOfAWait(t *testing.T) {
	inAskWorld(t, handling, func(t *testing.T, w *world) {
		_, task := w.handle("late")
		w.sessions.mute.Store(1000)
		first := w.c.ask(w.a, mcp.MethodToolsCall, `{"name":"task_result","arguments":{"taskId":"`+string(task)+`","waitSeconds":14.5}}`)
		wiretest.Wait(20 * time.Second)
		first.wantAsked("at the end of the wait")
		if w.sessions.mute.Load() == 1000 || !first.ended() {
			t.Fatal("the question did not come at the end of the wait")
		}
		w.sessions.mute.Store(0)
		again := w.read(w.c, w.b, task)
		wiretest.Wait(time.Second)
		again.wantAsked("in the next wait", nameQuestion(task, 0))
		w.closeAll(again)
	})
}

// A client that counts partial results, and whose GET stream began while the store was away,
// hears no questions there. The stream ends once the store is back, and the next one asks them.
func TestQuestionOnAStreamWithoutALog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newAskWorld(t, func(c *config.Config) { *c = *draftConfig(t) })
		w.c = newClient(t, w.a, takePartial+`,"elicitation":{}`)
		w.sessions.unopened.Store(1)
		get := w.c.begin(w.a, "")
		task := w.c.call(w.b, "ask")
		wiretest.Wait(5 * time.Second)
		if !get.ended() {
			t.Fatal("the stream goes on without a log, though the store is back")
		}
		get.wantAsked("without a log")
		next := w.c.begin(w.a, "")
		wiretest.Wait(time.Second)
		next.wantAsked("on the next stream", nameQuestion(task, 0))
		w.closeAll(get, next)
	})
}

// again is a stream that is given each question twice, as one that the store has forgotten is.
type again struct{ shim.Asker }

func (a again) Ask(id shim.ID, q []shim.Question) {
	a.Asker.Ask(id, q)
	a.Asker.Ask(id, q)
}

// A question that the store has forgotten is not put again to a client that has it, or is about to get it.
func TestQuestionOfACallThatWasForgotten(t *testing.T) {
	for name, away := range map[string]int64{"asked": 0, "to be asked": 2} {
		inBubble(t, name, func(t *testing.T) {
			w := newAskWorld(t, nil)
			w.asks = func(s shim.Asker) shim.Asker { return again{s} }
			w.a = w.gateway("again", w.a.up.script, newConfig(nil))
			w.sessions.unopened.Store(away)
			call := w.c.ask(w.a, mcp.MethodToolsCall, `{"name":"ask"}`)
			wiretest.Wait(10 * time.Second)
			asked := call.asked()
			if len(asked) != 1 {
				t.Fatalf("asked %v", asked)
			}
			w.answer(w.a, asked[0])
			wiretest.Wait(time.Second)
			call.wantAsked("in the end", asked...)
			w.closeAll(call)
		})
	}
}

// A stream whose time for a log came while the store was away has one once that is back: it can be resumed.
func TestStandingIsKeptLater(t *testing.T) {
	inAskWorld(t, nil, func(t *testing.T, w *world) {
		w.config.ResumeAfter = time.Second
		w.sessions.unopened.Store(5)
		get := w.c.begin(w.a, "")
		wiretest.Wait(time.Minute)
		if w.sessions.unopened.Load() > 0 || get.lastID() == "" {
			t.Error("the stream cannot be resumed")
		}
		w.closeAll(get)
	})
}

// A question that the GET stream has left unasked for its time is asked on tasks/result at once,
// also where no wait there lasts that long.
func TestQuestionThatTheGetStreamDoesNotAsk(t *testing.T) {
	inAskWorld(t, nil, func(t *testing.T, w *world) {
		w.sessions.shy.Store(true)
		get := w.c.begin(w.a, "")
		task := w.c.call(w.b, "ask")
		first := w.result(w.b, task)
		wiretest.Wait(1500 * time.Millisecond)
		first.wantAsked("within the time of the GET stream")
		first.leave()
		wiretest.Wait(time.Second)
		again := w.result(w.b, task)
		wiretest.Wait(100 * time.Millisecond)
		again.wantAsked("after that", nameQuestion(task, 0))
		w.closeAll(get, again)
	})
}

func handling(c *config.Config) { c.Upstreams[0].WithoutTasks = config.WithoutTasksHandle }

// handle makes a call that becomes a task, of which its client is told in words.
func (w *world) handle(tool string) (call *hearing, task shim.ID) {
	w.t.Helper()
	call = w.c.ask(w.a, mcp.MethodToolsCall, `{"name":"`+tool+`"}`)
	wiretest.Wait(46 * time.Second)
	if !call.ended() {
		w.t.Fatal("the call goes on")
	}
	return call, shim.ID(idOfTask(w.t, string(bytes.Join(call.said(), nil))))
}

// read begins to wait for a task by the gateway's own tool.
func (w *world) read(c *taskClient, g *legacyServer, task shim.ID) *hearing {
	w.t.Helper()
	return c.ask(g, mcp.MethodToolsCall, `{"name":"task_result","arguments":{"taskId":"`+string(task)+`"}}`)
}

// A client that was asked on the stream of its call has the question when it is told that
// the call has become a task, and is not asked again while it waits for that.
func TestQuestionOfACallThatBecomesATask(t *testing.T) {
	inAskWorld(t, handling, func(t *testing.T, w *world) {
		call, task := w.handle("ask")
		call.wantAsked("on the stream of the call", nameQuestion(task, 0))
		for _, g := range []*legacyServer{w.b, w.a} {
			r := w.read(w.c, g, task)
			wiretest.Wait(46 * time.Second)
			r.wantAsked("on that of the tool that reads it")
			if said := string(r.said()[0]); !strings.Contains(said, "input_required") {
				t.Errorf("after waiting: %s", said)
			}
		}
		last := w.read(w.c, w.b, task)
		w.answer(w.a, nameQuestion(task, 0))
		wiretest.Wait(time.Second)
		if said := string(last.said()[0]); !strings.Contains(said, "accept") {
			t.Errorf("the result: %s", said)
		}
	})
}

// What a client was asked while it waited for a task, it still has when it waits again. If it has gone amid its
// wait it is asked again: what was sent to it may not have come. Another session of the caller is asked, too: the client
// may have begun anew.
func TestQuestionOfATaskThatIsReadAgain(t *testing.T) {
	inAskWorld(t, handling, func(t *testing.T, w *world) {
		_, task := w.handle("late")
		gone := w.read(w.c, w.b, task)
		wiretest.Wait(20 * time.Second)
		gone.quit()
		gone.wantAsked("before it has gone", nameQuestion(task, 0))
		first := w.read(w.c, w.a, task)
		wiretest.Wait(46 * time.Second)
		first.wantAsked("the first time", nameQuestion(task, 0))
		again := w.read(w.c, w.b, task)
		wiretest.Wait(46 * time.Second)
		again.wantAsked("the second time")
		if !again.ended() {
			t.Error("no answer")
		}
		anew := newClient(t, w.b, `"elicitation":{}`)
		other := w.read(anew, w.b, task)
		wiretest.Wait(time.Second)
		other.wantAsked("in another session", nameQuestion(task, 0))
		w.answer(w.a, nameQuestion(task, 0))
		wiretest.Wait(time.Second)
		other.wantLast("accept")
	})
}

// An answer that waits for a task is given up when its client goes: nothing of it is left on
// the replica. The client resumes its stream at any replica, and is answered there, once.
func TestAbandonedResultIsGivenUp(t *testing.T) {
	inAskWorld(t, nil, func(t *testing.T, w *world) {
		for _, g := range []*legacyServer{w.b, w.a} {
			task := w.c.call(w.a, "ask")
			first := w.result(w.a, task)
			wiretest.Wait(10 * time.Second)
			first.wantAsked("the first stream", nameQuestion(task, 0))
			first.leave()
			wiretest.Wait(time.Second)
			if !first.ended() || tableOf(w.a.Gateway).Busy(w.c.session) {
				t.Error("the replica goes on with what nobody waits for")
			}
			again := w.resume(g, first)
			wiretest.Wait(time.Minute)
			again.wantAsked("resumed")
			w.answer(w.b, nameQuestion(task, 0))
			wiretest.Wait(time.Second)
			again.wantOnly("accept")
			last := w.resume(w.a, first)
			wiretest.Wait(time.Second)
			if said := last.said(); len(said) != 1 || !last.ended() {
				t.Errorf("resumed once more: %s", said)
			}
		}
	})
}

// A client may resume the stream before its replica has noticed that it is gone: that one
// answers no more, and asks no more.
func TestResultResumedUnnoticed(t *testing.T) {
	inAskWorld(t, nil, func(t *testing.T, w *world) {
		task := w.c.call(w.a, "twice")
		first := w.result(w.a, task)
		wiretest.Wait(10 * time.Second)
		again := w.resume(w.a, first)
		wiretest.Wait(time.Second)
		if !first.ended() {
			t.Error("the stream before goes on")
		}
		w.answer(w.b, nameQuestion(task, 0))
		wiretest.Wait(time.Second)
		again.wantAsked("resumed", nameQuestion(task, 1))
		w.answer(w.b, nameQuestion(task, 1))
		wiretest.Wait(time.Second)
		first.wantAsked("the stream before", nameQuestion(task, 0))
		if said := again.said(); len(said) != 2 || !again.ended() {
			t.Errorf("the end: %s", said)
		}
	})
}

// The same at the other replica.
func TestReplicasResultTakenOver(t *testing.T) {
	stack, a, b := newPair(t, resumeSoon, canBeAsked)
	withQuestions(stack.server)
	task := a.task("colour")
	first := openSSE(t, a, http.MethodPost, fmt.Sprintf(resultBody, task), "")
	primed, _, _ := first.event()
	id := first.question(task)
	second := openSSE(t, b, http.MethodGet, "", primed)
	if again := second.question(task); again != id {
		t.Errorf("asked under another id: %s, %s", id, again)
	}
	a.answer(id, "red")
	second.wantEnd("r", "accept red")
	for _, stream := range []*sseClient{first, second} {
		if _, data, ok := stream.event(); ok {
			t.Errorf("more came: %s", data)
		}
	}
}

// A client that has resumed the stream on which it waits for a result is asked there what
// the task asks from then on, at either replica, and not again what it was asked before.
func TestQuestionsOfAResumedResult(t *testing.T) {
	inAskWorld(t, nil, func(t *testing.T, w *world) {
		for _, g := range []*legacyServer{w.a, w.b} {
			task := w.c.call(w.a, "twice")
			first := w.result(w.a, task)
			first.wantAsked("the first stream", nameQuestion(task, 0))
			first.leave() // the replica goes on with the request
			wiretest.Wait(time.Second)
			again := w.resume(g, first)
			wiretest.Wait(time.Second)
			again.wantAsked("resumed")
			w.answer(w.a, nameQuestion(task, 0))
			wiretest.Wait(time.Minute)
			again.wantAsked("the second question", nameQuestion(task, 1))
			again.leave() // and once more
			wiretest.Wait(time.Second)
			last := w.resume(w.b, again)
			wiretest.Wait(time.Minute)
			last.wantAsked("resumed twice")
			w.answer(w.a, nameQuestion(task, 1))
			wiretest.Wait(time.Second)
			last.wantOnly("accept")
			w.closeAll(first, again, last)
		}
	})
}

// Of a stream that is resumed a client does not get the questions that nobody waits for
// any more, and of those that it has it is told.
func TestDeadQuestionsAreNotAskedAgain(t *testing.T) {
	for name, c := range map[string]struct {
		end  func(w *world, task shim.ID)
		over bool // the client, which has the question, is told
	}{
		"answered elsewhere": {func(w *world, task shim.ID) { w.answer(w.b, nameQuestion(task, 0)) }, false},
		"cancelled": {func(w *world, task shim.ID) {
			w.c.do(w.b, mcp.MethodTasksCancel, `{"taskId":"`+string(task)+`"}`)
		}, true},
		"out of time": {func(*world, shim.ID) { wiretest.Wait(2 * time.Minute) }, true},
	} {
		inBubble(t, name, func(t *testing.T) {
			w := newAskWorld(t, func(c *config.Config) { c.Upstreams[0].Defaults.InputTimeout = time.Minute })
			get := w.c.begin(w.a, "")
			task := w.c.call(w.a, "ask")
			wiretest.Wait(2 * time.Second)
			get.wantAsked("the stream", nameQuestion(task, 0))
			get.quit()
			c.end(w, task)
			primed, _, _ := strings.Cut(get.lastID(), ".")
			lacks := w.c.begin(w.b, "", mcp.HeaderLastEventID, primed+".0")
			wiretest.Wait(time.Second)
			for _, id := range lacks.asked() {
				if !strings.HasPrefix(id, "-") {
					t.Errorf("a client that lacks it is asked %s", id)
				}
			}
			lacks.quit()
			has := w.resume(w.a, get)
			wiretest.Wait(time.Second)
			if c.over {
				has.wantAsked("to a client that has it", "-"+nameQuestion(task, 0))
			} else {
				has.wantAsked("to a client that has answered")
			}
			w.closeAll(has)
		})
	}
}

// A question that waits for a slow client when its stream breaks is not asked on the next one if
// nobody waits for it by then.
func TestDeadQuestionsOfTheOutbox(t *testing.T) {
	inAskWorld(t, nil, func(t *testing.T, w *world) {
		get := w.c.begin(w.a, "")
		tasks := []shim.ID{w.c.call(w.a, "ask")}
		wiretest.Wait(5 * time.Second)
		get.w.hold()
		for range 3 {
			tasks = append(tasks, w.c.call(w.a, "ask"))
			wiretest.Wait(5 * time.Second)
		}
		get.leave()
		get.w.fail()
		get.w.letGo()
		<-get.done
		for _, task := range tasks[:3] {
			w.answer(w.a, nameQuestion(task, 0))
		}
		wiretest.Wait(time.Second)
		next := w.c.begin(w.a, "")
		wiretest.Wait(5 * time.Second)
		next.wantAsked("the next stream", nameQuestion(tasks[3], 0))
		w.closeAll(next)
	})
}

// A client that comes back for a call finds on its stream what that asks, also what it has asked meanwhile, and
// nothing any more that was answered or withdrawn.
func TestDeadQuestionsOfACall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newAskWorld(t, func(c *config.Config) { c.Upstreams[0].Defaults.InputTimeout = time.Minute })
		call := w.c.ask(w.a, mcp.MethodToolsCall, `{"name":"twice"}`)
		wiretest.Wait(time.Second)
		asked := call.asked()
		if len(asked) != 1 {
			t.Fatalf("asked %v", asked)
		}
		primed := append(call.ids(), "")[0]
		call.leave()
		wiretest.Wait(time.Second)
		open := w.c.begin(w.b, "", mcp.HeaderLastEventID, primed)
		open.wantAsked("resumed while it is open", asked...)
		open.quit()
		w.answer(w.b, asked[0])
		wiretest.Wait(time.Second)
		again := w.c.begin(w.b, "", mcp.HeaderLastEventID, primed)
		wiretest.Wait(time.Second)
		again.wantAsked("resumed", strings.Replace(asked[0], "/q0", "/q1", 1))
		w.answer(w.b, again.asked()[0])
		wiretest.Wait(time.Second)
		said := again.said()
		if id, _ := jsonrpc.Get(said[len(said)-1], "result"); id == nil || again.w.status > http.StatusOK {
			t.Errorf("the end: %s", said)
		}
		w.closeAll(call, again)
		late := w.c.ask(w.a, mcp.MethodToolsCall, `{"name":"ask"}`)
		asked = late.asked()
		wiretest.Wait(2 * time.Minute)
		late.wantAsked("out of time", append(asked, "-"+asked[0])...)
	})
}

// modern sends a request of a client of the extension that answers forms, and returns the result.
func (w *world) modern(g *legacyServer, method, params string) json.RawMessage {
	w.t.Helper()
	meta := strings.Replace(wiretest.Macros.Replace("$TASKS"), `"extensions":`, `"elicitation":{},"extensions":`, 1)
	r, word, msg := wiretest.ParseRequest(w.t, "POST /up/mcp\n\n"+`{"jsonrpc":"2.0","id":1,"method":"`+method+`","params":{`+params+`,"_meta":{`+meta+`}}}`)
	rec := httptest.NewRecorder()
	g.Handler().ServeHTTP(rec, r)
	wiretest.CheckSchemas(w.t, msg, word, rec)
	result, ok := jsonrpc.Get(rec.Body.Bytes(), "result")
	if !ok {
		w.t.Fatalf("%s: %s", method, rec.Body)
	}
	return result
}

// A client of the extension finds in its task what the server wants to know: the call becomes a task at once (H16). It
// answers one by one, in any order, twice, at any replica (T24, T34–T39).
func TestQuestionsInATask(t *testing.T) {
	inAskWorld(t, nil, func(t *testing.T, w *world) {
		var about string // the task, in requests
		call := func(tool string) {
			id, _ := jsonrpc.GetString(w.modern(w.a, mcp.MethodToolsCall, `"name":"`+tool+`"`), "taskId")
			about = `"taskId":"` + id + `"`
		}
		want := func(g *legacyServer, status string, questions ...string) json.RawMessage {
			t.Helper()
			task := w.modern(g, mcp.MethodTasksGet, about)
			requests, _ := jsonrpc.Get(task, "inputRequests")
			var open []string
			for key := range jsonrpc.Members(requests) {
				open = append(open, key)
			}
			if got, _ := jsonrpc.GetString(task, "status"); got != status || !slices.Equal(open, questions) {
				t.Errorf("the task is %s, want %s with %v", task, status, questions)
			}
			return task
		}
		update := func(g *legacyServer, key, colour string) {
			t.Helper()
			answer := `{"action":"accept","content":{"colour":"` + colour + `"}}`
			ack := w.modern(g, mcp.MethodTasksUpdate, about+`,"inputResponses":{"unknown":{},"`+key+`":`+answer+`}`)
			wantNoTexts(t, ack, "taskId", "status", "inputRequests") // T34
			wiretest.Wait(time.Second)
		}
		call("both")
		want(w.b, "input_required", "q0", "q1")
		update(w.b, "q1", "blue")
		want(w.a, "input_required", "q0") // T37, T24
		update(w.a, "q1", "green")
		update(w.b, "q0", "red")
		wantTexts(t, want(w.a, "completed"), `{\"colour\":\"red\"}}{\"action\":\"accept\",\"content\":{\"colour\":\"blue\"}}`)
		update(w.a, "q0", "late")
		call("ask")
		want(w.b, "input_required", "q0")
		w.modern(w.b, mcp.MethodTasksCancel, about)
		wiretest.Wait(time.Second)
		want(w.a, "cancelled")
	})
}
