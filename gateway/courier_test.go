package gateway

import (
	"context"
	"encoding/json"
	"testing"
	"testing/synctest"

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
