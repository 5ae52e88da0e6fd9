package upstream

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"taskgate/internal/work"
	"taskgate/shim"
	"taskgate/shim/shimtest"
	"taskgate/shim/shimtest/fake"
)

const (
	elicit = `{"message":"who?","requestedSchema":{"type":"object"}}`
	all    = `{"elicitation":{"form":{},"url":{}},"sampling":{},"roots":{}}`
)

// answering answers each question with its own method's name.
func answering(_ context.Context, q ...shim.Question) ([]shim.Answer, error) {
	out := make([]shim.Answer, len(q))
	for i := range q {
		out[i].Result = json.RawMessage(`{"to":"` + q[i].Method + `"}`)
	}
	return out, nil
}

func callIn(t *testing.T, h *ServerClient, caps string, s shim.Sink) (shim.Reply, error) {
	return h.Call(t.Context(), in("a", caps), s)
}

// The ids of the server's requests go back as they came, whatever they are.
func TestAnswerIDs(t *testing.T) {
	for _, id := range []string{`0`, `1`, `"1"`, `"\u00e9 x"`, `9007199254740993`, `""`} {
		bubble(t, fake.Stateful, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
			var got json.RawMessage
			s.Tool("t", func(x *fake.Exchange) {
				got = x.Ask(id, "elicitation/create", elicit)
				x.Event(x.Fill(result))
			})
			must(t, errorOf(callIn(t, h, all, &shimtest.Sink{OnAsk: answering})))
			if want := `{"jsonrpc":"2.0","id":` + id + `,"result":{"to":"elicitation/create"}}`; string(got) != want {
				t.Errorf("server got %s, want %s", got, want)
			}
		})
	}
}

// A server without sessions numbers its requests anew when it is started again, and nothing says that it was:
// its questions are asked all the same.
func TestIDsOfAServerWithoutSessions(t *testing.T) {
	bubble(t, fake.Stateless, Config{Era: EraLegacy}, func(t *testing.T, s *fake.Server, h *ServerClient) {
		s.Tool("t", func(x *fake.Exchange) {
			x.Ask(`0`, "elicitation/create", elicit)
			x.Event(x.Fill(result))
		})
		for range 2 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			check(t, errorOf(h.Call(ctx, in("a", all), &shimtest.Sink{OnAsk: answering})))
			cancel()
		}
	})
}

// What may not be asked is refused with the code that is for it (protocol.md
// 7.4), and the client is left alone.
func TestUndeclared(t *testing.T) {
	for _, c := range []struct{ caps, method, params, code string }{
		{`{}`, "elicitation/create", elicit, "-32601"},
		{`{"elicitation":{}}`, "elicitation/create", `{"mode":"url","url":"https://x"}`, "-32602"},
		{`{"elicitation":{"url":{}}}`, "elicitation/create", elicit, "-32602"},
		{`{"elicitation":{}}`, "sampling/createMessage", `{}`, "-32601"},
		{`{"elicitation":{}}`, "roots/list", `{}`, "-32601"},
		{all, "tasks/get", `{}`, "-32601"},
		{all, "nonsense", `{}`, "-32601"},
	} {
		bubble(t, fake.Stateful, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
			var got json.RawMessage
			s.Tool("t", func(x *fake.Exchange) { got = x.Ask(`7`, c.method, c.params); x.Event(x.Fill(result)) })
			sink := shimtest.Sink{OnAsk: answering}
			must(t, errorOf(callIn(t, h, c.caps, &sink)))
			if !strings.Contains(string(got), `"code":`+c.code) || len(sink.Asked()) != 0 {
				t.Errorf("%s with %s: server got %s, client %v", c.method, c.caps, got, sink.Asked())
			}
		})
	}
}

// How a client's refusals and failures reach the server.
func TestAnswers(t *testing.T) {
	for _, c := range []struct {
		name   string
		answer []shim.Answer
		err    error
		want   string
	}{
		{"error", []shim.Answer{{Error: &shim.RPCError{Code: -1, Message: "no", Data: json.RawMessage(`{"x":1}`)}}}, nil, `"error":{"code":-1,"message":"no","data":{"x":1}}`},
		{"cannot be asked", nil, shim.ErrNoAsk, `"code":-32601`},
		{"failure", nil, errors.New("secret"), `"code":-32603`},
		{"nothing", nil, nil, `"code":-32603`},
	} {
		bubble(t, fake.Stateful, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
			var got json.RawMessage
			s.Tool("t", func(x *fake.Exchange) { got = x.Ask(`7`, "elicitation/create", elicit); x.Event(x.Fill(result)) })
			sink := shimtest.Sink{OnAsk: func(context.Context, ...shim.Question) ([]shim.Answer, error) { return c.answer, c.err }}
			must(t, errorOf(callIn(t, h, all, &sink)))
			if !strings.Contains(string(got), c.want) || strings.Contains(string(got), "secret") {
				t.Errorf("%s: server got %s", c.name, got)
			}
		})
	}
}

// silent is a client that does not answer.
func silent() *shimtest.Sink { return &shimtest.Sink{OnAsk: waitFor} }

// waitFor waits until its question is withdrawn.
func waitFor(ctx context.Context, _ ...shim.Question) ([]shim.Answer, error) {
	<-ctx.Done()
	return nil, context.Cause(ctx)
}

// A server that no longer waits ends the question: by withdrawing it, by
// answering the call, or by going away.
func TestWithdrawn(t *testing.T) {
	for _, c := range []struct {
		name string
		then fake.Behaviour
		kind string
	}{
		{"withdrawn", func(x *fake.Exchange) {
			x.Event(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":7}}`)
			x.Event(x.Fill(result))
		}, ""},
		{"answered", func(x *fake.Exchange) { x.Event(x.Fill(result)) }, ""},
		{"gone", func(x *fake.Exchange) { x.Cut() }, shim.KindClosed},
	} {
		for _, wait := range []time.Duration{0, time.Minute} {
			bubble(t, fake.Stateful, Config{IdleTimeout: time.Second}, func(t *testing.T, s *fake.Server, h *ServerClient) {
				s.Tool("t", func(x *fake.Exchange) {
					x.Event(`{"jsonrpc":"2.0","id":7,"method":"elicitation/create","params":` + elicit + `}`)
					_ = work.Pause(x.R.Context(), wait)
					c.then(x)
				})
				r, err := callIn(t, h, all, silent())
				checkKind(t, r, err, c.kind, 0)
				if n := len(s.Seen("")); n != 0 {
					t.Errorf("%s: %d answers to a question nobody waits for", c.name, n)
				}
			})
		}
	}
}

// A server that no longer waits ends the question also where the stream of the call has broken meanwhile.
func TestWithdrawnBehindABreak(t *testing.T) {
	for name, after := range map[string]string{
		"withdrawn": `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":7}}`,
		"answered":  `{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":1}}`,
	} {
		bubble(t, fake.Stateful, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
			s.OnAnswer(func(*fake.Exchange) bool {
				t.Errorf("%s: an answer to a question nobody waits for", name)
				return true
			})
			s.Tool("t", func(x *fake.Exchange) {
				x.Run()
				x.Resumable(0, 2, func(send func(string)) {
					send(`{"jsonrpc":"2.0","id":7,"method":"elicitation/create","params":` + elicit + `}`)
					_ = work.Pause(t.Context(), time.Minute)
					send(after)
					send(x.Fill(result))
				})
			})
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			if _, err := h.Call(ctx, in("a", all), silent()); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		})
	}
}

// A server may withdraw one of the questions that it has asked together: the client is told which.
func TestOneOfTheQuestionsIsWithdrawn(t *testing.T) {
	bubble(t, fake.Stateful, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
		s.Tool("t", func(x *fake.Exchange) {
			first := x.Expect(`1`)
			x.Event(`{"jsonrpc":"2.0","id":1,"method":"elicitation/create","params":` + elicit + `}`)
			x.Event(`{"jsonrpc":"2.0","id":2,"method":"roots/list"}`)
			_ = work.Pause(x.R.Context(), time.Second)
			x.Event(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":2}}`)
			x.Await(first)
			x.Event(x.Fill(result))
		})
		sink := &shimtest.Sink{}
		sink.OnAsk = func(ctx context.Context, q ...shim.Question) ([]shim.Answer, error) {
			_ = work.Pause(ctx, time.Minute)
			if gone := sink.Withdrawn(); len(q) != 2 || len(gone) != 1 || gone[0] != q[1].Key {
				t.Errorf("of %v are withdrawn: %v", q, gone)
			}
			return answering(ctx, q...)
		}
		check(t, errorOf(callIn(t, h, all, sink)))
		if n := len(s.Seen("")); n != 1 {
			t.Errorf("%d answers", n)
		}
	})
}

// The answer is delivered once more if the server was out of reach.
func TestAnswerDelivery(t *testing.T) {
	for _, status := range []int{503, 423} { // the second in words of something that stands before the server
		bubble(t, fake.Stateful, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
			fails := 2
			s.Tool("t", func(x *fake.Exchange) { x.Ask(`7`, "elicitation/create", elicit); x.Event(x.Fill(result)) })
			s.OnAnswer(func(x *fake.Exchange) bool {
				fails--
				if fails >= 0 {
					x.W.WriteHeader(status)
				}
				return fails < 0
			})
			must(t, errorOf(callIn(t, h, all, &shimtest.Sink{OnAsk: answering})))
		})
	}
	// A server that refuses it, or lost the session, ends the call: it would wait
	// for ever. It is not sent again, whatever the status.
	for status, kind := range map[int]string{400: shim.KindProtocol, 404: shim.KindSession, 500: shim.KindProtocol} {
		bubble(t, fake.Stateful, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
			s.Tool("t", func(x *fake.Exchange) { x.Run(); x.Ask(`7`, "elicitation/create", elicit) })
			s.OnAnswer(func(x *fake.Exchange) bool { x.W.WriteHeader(status); return false })
			r, err := callIn(t, h, all, &shimtest.Sink{OnAsk: answering})
			checkKind(t, r, err, kind, 0)
			if n := s.Runs("k"); n != 1 {
				t.Errorf("tool ran %d times", n)
			}
		})
	}
}

// A ping is answered, and a server that does not take the answer still answers the call.
func TestPong(t *testing.T) {
	for _, code := range []int{202, 400, 404, 503} {
		bubble(t, fake.Stateful, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
			answered := make(chan struct{}, 8)
			s.Tool("t", func(x *fake.Exchange) {
				x.Event(`{"jsonrpc":"2.0","id":"p","method":"ping"}`)
				<-answered
				x.Event(x.Fill(result))
			})
			s.OnAnswer(func(x *fake.Exchange) bool {
				fake.Status(code, "", "")(x)
				answered <- struct{}{}
				return false
			})
			reply, err := h.Call(t.Context(), in("a", all), nil)
			checkKind(t, reply, err, "", 0)
			if got := s.Seen("POST"); string(got[0].Message) != `{"jsonrpc":"2.0","id":"p","result":{}}` {
				t.Errorf("the server got %s", got[0].Message)
			}
		})
	}
}
