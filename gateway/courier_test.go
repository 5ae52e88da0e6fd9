package gateway

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"taskgate/internal/mcp"
	"taskgate/shim"
)

// awayShim cannot claim the first few times.
type awayShim struct {
	shim.API
	fails int
}

func (s *awayShim) Claim(_ context.Context, _ shim.Principal, _ string, _ shim.ID, _ []string, by string, _ []string) ([]shim.Question, error) {
	if s.fails--; s.fails >= 0 {
		return nil, shim.ErrUnavailable
	}
	return []shim.Question{{Key: "q", Method: mcp.MethodElicit, Claim: by}}, nil
}

// A question that could not be claimed for want of the store is delivered once that is
// back, although its task does not change.
func TestCourierWaitsForTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &session{id: "s"}
		s.state.Capabilities = json.RawMessage(`{"elicitation":{}}`)
		sent := 0
		c := newCourier(t.Context(), &endpoint{shim: &awayShim{fails: 3}}, s, shim.Principal{}, "get", line{ask: func(string, []byte) error {
			sent++
			return nil
		}})
		task := shim.Task{ID: "t", Status: shim.InputRequired, Questions: []shim.Question{{Key: "q", Method: mcp.MethodElicit, Params: json.RawMessage(`{}`)}}}
		for range 2 {
			c.look(t.Context(), task)
			if sent != 1 {
				t.Fatalf("delivered %d times", sent)
			}
		}
	})
}

// lateShim has a claim that is given up by a stream which asks just before that.
type lateShim struct {
	shim.API
	before func(shim.Question)
}

func (s *lateShim) Claim(_ context.Context, _ shim.Principal, _ string, _ shim.ID, _ []string, by string, _ []string) ([]shim.Question, error) {
	q := shim.Question{Key: "q", Method: mcp.MethodElicit, Claim: by}
	s.before(q)
	return []shim.Question{q}, nil
}

// Whoever goes on with a stream finds in its log what the replica before it has asked to
// the last, and does not ask it again.
func TestCourierFindsTheLatestQuestion(t *testing.T) {
	for name, late := range map[string]bool{"asked to the last": true, "not asked": false} {
		t.Run(name, func(t *testing.T) {
			logs := openSessions(t, 1, time.Hour)
			s := &session{id: "s", table: newSessionTable(logs, nil)}
			s.state.Capabilities = json.RawMessage(`{"elicitation":{}}`)
			id, err := shim.NewID()
			if err == nil {
				_, err = logs.Open(t.Context(), "s", "x", []byte("[]"))
			}
			if err != nil {
				t.Fatal(err)
			}
			sh := &lateShim{before: func(q shim.Question) {
				if late {
					_, err = logs.Append(t.Context(), "s", "x", questionRequest(id, q, true))
				}
			}}
			sent := 0
			c := newCourier(t.Context(), &endpoint{shim: sh}, s, shim.Principal{}, "y", line{ask: func(string, []byte) error {
				sent++
				return nil
			}})
			c.past = &past{stream: "x"}
			c.look(t.Context(), shim.Task{ID: id, Status: shim.InputRequired, Questions: []shim.Question{{Key: "q", Method: mcp.MethodElicit, Params: json.RawMessage(`{}`)}}})
			if err != nil || sent == 1 == late {
				t.Errorf("asked %d times, %v", sent, err)
			}
		})
	}
}

// givenShim notes what is claimed, by whom, and over whom.
type givenShim struct {
	shim.API
	claims []string
	fails  int
}

func (s *givenShim) Claim(_ context.Context, _ shim.Principal, _ string, _ shim.ID, keys []string, by string, over []string) ([]shim.Question, error) {
	if by == claimFree {
		if s.fails--; s.fails >= 0 {
			return nil, shim.ErrUnavailable
		}
	}
	s.claims = append(s.claims, fmt.Sprint(keys, " ", by, " ", over))
	var claimed []shim.Question
	for _, key := range keys {
		claimed = append(claimed, shim.Question{Key: key, Method: mcp.MethodElicit, Claim: by})
	}
	return claimed, nil
}

// A stream that has claimed questions and breaks before it could send them gives them back,
// as soon as the store can be had.
func TestQuestionsOfABrokenStreamAreGivenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &session{id: "s"}
		s.state.Capabilities = json.RawMessage(`{"elicitation":{}}`)
		sh := &givenShim{fails: 2}
		c := newCourier(t.Context(), &endpoint{shim: sh}, s, shim.Principal{}, "x", line{ask: func(string, []byte) error { return net.ErrClosed }})
		question := func(key string) shim.Question {
			return shim.Question{Key: key, Method: mcp.MethodElicit, Params: json.RawMessage(`{}`)}
		}
		task := shim.Task{ID: "t", Status: shim.InputRequired, Questions: []shim.Question{question("a"), question("b")}}
		var looking sync.WaitGroup
		looking.Go(func() { c.look(t.Context(), task) })
		synctest.Wait()
		c.quit(t.Context(), "t")
		looking.Wait()
		want := []string{"[a b] s x []", "[] - [s x]"}
		if !slices.Equal(sh.claims, want) {
			t.Errorf("claimed %q, want %q", sh.claims, want)
		}
	})
}
