package upstream

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"taskgate/internal/mcp"
	"taskgate/internal/work"
	"taskgate/shim"
	"taskgate/shim/shimtest"
	"taskgate/shim/shimtest/fake"
)

// A server that asks more than one call may is told so for each question too many, at
// once, and the call goes on. The checkpoint holds no more than those that are asked.
func TestAskedTooMuch(t *testing.T) {
	for name, c := range map[string]struct {
		limits shim.QuestionLimits
		params string
		asked  int
		says   string
		room   int // how many questions the sink has room for; 0 for all
	}{
		"at once":   {shim.QuestionLimits{Open: 3}, elicit, 3, "too many questions at once: 3 of one call may wait for an answer", 0},
		"in all":    {shim.QuestionLimits{Most: 2}, elicit, 2, "too many questions: one call may ask 2", 0},
		"bytes":     {shim.QuestionLimits{Bytes: int64(4*len(elicit) + 1)}, elicit, 4, "too large a question", 0},
		"too large": {shim.QuestionLimits{Bytes: 10}, elicit, 0, "may have 10 bytes together", 0},
		"default":   {shim.QuestionLimits{}, elicit, 10, "", 0},
		"no room":   {shim.QuestionLimits{}, elicit, 3, "what is kept for this caller, or for all, is at its limit", 3},
	} {
		bubbleOf(t, name, fake.Stateful, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
			refused := make(chan string, 20)
			s.Tool("t", func(x *fake.Exchange) {
				var waiting []<-chan json.RawMessage
				for i := range 10 {
					waiting = append(waiting, x.Expect(fmt.Sprint(i)))
					x.Event(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"elicitation/create","params":%s}`, i, c.params))
				}
				for _, answer := range waiting[c.asked:] {
					refused <- string(x.Await(answer))
				}
				_ = work.Pause(x.R.Context(), 2*gather) // until the others are asked
				x.Event(x.Fill(result))
			})
			sink := silent()
			sink.OnRoomToAsk = func(bytes int) bool { return c.room == 0 || bytes <= c.room*len(c.params) }
			r := asksIn("a", all)
			r.Limits = c.limits
			if reply, err := h.Call(t.Context(), r, sink); err != nil || reply.Error != nil {
				t.Fatalf("%+v, %v", reply, err)
			}
			if n := len(sink.Asked()); n != c.asked || len(refused) != 10-c.asked {
				t.Errorf("asked %d and refused %d, want %d", n, len(refused), c.asked)
			}
			close(refused)
			for text := range refused {
				if !strings.Contains(text, c.says) || !strings.Contains(text, `"code":-32603`) {
					t.Errorf("the server was told %s", text)
				}
			}
			for _, cp := range sink.Checkpoints() {
				if n := strings.Count(string(cp), `"key"`); n > c.asked {
					t.Errorf("a checkpoint has %d questions: %s", n, cp)
				}
			}
		})
	}
}

// Those that come on the GET stream count with those on the call's own, and those of the
// replica before with those of this one.
func TestAskedTooMuchAside(t *testing.T) {
	bubble(t, fake.Stateful, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
		own, more := make(chan struct{}), make(chan struct{})
		told := make(chan json.RawMessage, 10)
		s.Tool("t", func(x *fake.Exchange) {
			x.Run()
			x.Head("text/event-stream")
			x.Comment()
			<-own
			x.Event(`{"jsonrpc":"2.0","id":"own","method":"elicitation/create","params":` + elicit + `}`)
			<-more
			x.Event(x.Fill(result))
		})
		r := asksIn("a", all)
		r.Limits = shim.QuestionLimits{Open: 2, Most: 3}
		f := aloftIn(t, h, r, silent())
		close(own)
		synctest.Wait()
		ask := func(id string) {
			go func() { told <- s.Request(id, "roots/list", `{}`) }()
			synctest.Wait()
		}
		ask("1")
		ask("2")
		if len(told) != 1 || !strings.Contains(string(<-told), "2 of one call may wait") {
			t.Errorf("%d refused", len(told))
		}
		s.Notify("notifications/cancelled", `{"requestId":1}`)
		synctest.Wait()
		ask("3")
		s.Notify("notifications/cancelled", `{"requestId":3}`)
		synctest.Wait()
		ask("4")
		if len(told) != 1 || !strings.Contains(string(<-told), "one call may ask 3") {
			t.Errorf("%d refused", len(told))
		}
		close(more)
		f.ended(t)
	})
}

// A call that has ended shows no session question, and whoever asks that hears so once: also one that stops asking at
// the same time.
func TestCallThatEndsShowsNoQuestion(t *testing.T) {
	var sink shimtest.Sink
	x := &exchange{to: target{era: mcp.Legacy}, sink: &sink, caller: shim.Session{Capabilities: json.RawMessage(all)}}
	x.checkpoints.sink, x.asking.x, x.asking.caller = &sink, x, t.Context()
	p := pending{Key: "q", Method: mcp.MethodElicit, Params: []byte(elicit), Shown: true, over: make(chan shim.Answer)}
	if !x.asking.showQuestion(p) {
		t.Fatal("the call does not show the question")
	}
	x.asking.quitAsking()
	x.asking.withdrawQuestion(func(other pending) bool { return other.Key == p.Key })
	if _, answered := <-p.over; answered {
		t.Error("the question has an answer")
	}
}
