package upstream

import (
	"errors"
	"fmt"
	"testing"

	"taskgate/shim"
	"taskgate/shim/shimtest/fake"
)

// What a modern server wants with its result does not depend on how the caller can be
// asked: it is told the same of what is out of place, and may always be called again.
func TestInputRequired(t *testing.T) {
	for _, c := range []struct{ result, none, able string }{
		{`{"resultType":"input_required","requestState":"s"}`, "round", "round"},
		{`{"resultType":"input_required","inputRequests":{"a":{"method":"roots/list"}}}`, "-32603", "round"},
		{`{"resultType":"input_required","inputRequests":{"a":{"method":"sampling/createMessage"}},"requestState":"s"}`, "-32021", "-32021"},
		{`{"resultType":"input_required","inputRequests":{"a":{"method":"tools/list"}},"requestState":"s"}`, "protocol", "protocol"},
		{`{"resultType":"input_required"}`, "protocol", "protocol"},
	} {
		bubble(t, fake.Modern, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
			s.Tool("t", fake.Result(c.result))
			for name, change := range map[string]func(*shim.Request){
				"none":   func(*shim.Request) {},
				"relay":  func(r *shim.Request) { r.Relay = true },
				"rounds": func(r *shim.Request) { r.Rounds = true },
				"both":   func(r *shim.Request) { r.Relay, r.Rounds = true, true },
			} {
				r := in("a", `{"roots":{}}`)
				change(&r)
				want := c.able
				if name == "none" {
					want = c.none
				}
				reply, err := h.Call(t.Context(), r, nil)
				ue, _ := errors.AsType[*shim.UpstreamError](err)
				got := "?"
				switch {
				case ue != nil:
					got = ue.Kind
				case reply.Error != nil:
					got = fmt.Sprint(reply.Error.Code)
				case reply.InputRequired && reply.Round != nil:
					got = "round"
				}
				if got != want {
					t.Errorf("%s, %s: %s, want %s", c.result, name, got, want)
				}
			}
		})
	}
}
