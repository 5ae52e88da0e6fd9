package gateway

import (
	"context"
	"encoding/json"
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
