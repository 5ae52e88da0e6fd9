package duplex

import (
	"errors"
	"testing"
	"testing/synctest"

	"taskgate/gateway/upstream/transport"
	"taskgate/gateway/upstream/transporttest"
	"taskgate/internal/jsonrpc"
	"taskgate/shim"
)

// An answer that is no JSON and has no id fails the only request. What a program prints fails none.
func TestSpoiltAnswersWithoutID(t *testing.T) {
	const spoilt = `{"jsonrpc":"2.0","result":{"value":NaN`
	for name, c := range map[string]struct {
		requests string // each a letter
		says     []string
		want     string // what becomes of each: f(ailed), a(nswered), w(aiting)
	}{
		"the only request":       {"a", []string{spoilt}, "f"},
		"an error":               {"a", []string{`{"jsonrpc":"2.0","error":{"code":NaN}}`}, "f"},
		"a line of a log":        {"a", []string{`{"level":"info","msg":NaN}`, "Server started!", `{"error":"jsonrpc`}, "w"},
		"a printed request":      {"a", []string{`received {"jsonrpc":"2.0","id":"a","method":"work"}`}, "w"},
		"a print and an answer":  {"a", []string{`working...{"jsonrpc":"2.0","id":"a","result":{"method":1}}`}, "f"},
		"a notification":         {"a", []string{`{"jsonrpc":"2.0","method":"notifications/message","params":{"result":NaN}}`}, "w"},
		"of a request that left": {"a", []string{`{"jsonrpc":"2.0","id":"x","result":{"value":NaN`}, "w"},
		"one of two":             {"ab", []string{spoilt}, "ww"},
		"answered before":        {"ab", []string{"b", spoilt}, "fa"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var p *pipe
				tr := opens(t, Config{}, func(link *pipe, m jsonrpc.Message) {
					if m.Method == "initialize" {
						p = link
						p.answer(m)
					}
				})
				session := begin(t, tr)
				var all []transport.Stream
				for _, id := range c.requests {
					in := mustPost(t, tr, session, `{"jsonrpc":"2.0","id":"`+string(id)+`","method":"work"}`)
					all = append(all, in)
				}
				for _, say := range c.says {
					if len(say) == 1 {
						say = `{"jsonrpc":"2.0","id":"` + say + `","result":{}}`
					}
					p.say("%s", say)
					synctest.Wait()
				}
				got := make([]byte, len(all))
				for i, in := range all {
					got[i] = fateOf(t, in)
				}
				if string(got) != c.want {
					t.Errorf("got %s, want %s", got, c.want)
				}
			})
		})
	}
}

// fateOf is what has become of a request by now.
func fateOf(t *testing.T, in transport.Stream) byte {
	t.Helper()
	fate := make(chan byte, 1)
	go func() {
		_, err := transporttest.ReadAll(in)
		ue, ok := errors.AsType[*shim.UpstreamError](err)
		switch {
		case ok && ue.Kind == shim.KindProtocol:
			fate <- 'f'
		case err == nil:
			fate <- 'a'
		default:
			fate <- 'w'
		}
	}()
	synctest.Wait()
	in.Close() // whoever waits reads nothing more
	select {
	case f := <-fate:
		return f
	default:
		return 'w'
	}
}
