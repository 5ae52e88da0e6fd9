package upstream

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"

	"taskgate/shim"
	"taskgate/shim/shimtest/fake"
)

// tenant is a context of a request with this header.
func tenant(ctx context.Context, value string) context.Context {
	return WithForwarded(ctx, &Forwarded{Header: http.Header{"X-Tenant": {value}}})
}

func TestMark(t *testing.T) {
	seen := map[string]string{}
	for name, h := range map[string]http.Header{
		"a": {"A": {"1"}}, "other value": {"A": {"2"}}, "other name": {"B": {"1"}}, "both": {"A": {"1"}, "B": {"1"}},
		"twice": {"A": {"1", "1"}}, "joined": {"A": {"11"}}, "empty": {"A": {""}}, "value as a name": {"A": {"1", "B", "1"}},
	} {
		mark := Mark(WithForwarded(t.Context(), &Forwarded{Header: h}))
		if seen[mark] != "" || mark == "" || strings.Contains(mark, "1\x00") {
			t.Errorf("%s is marked as %q is: %q", name, seen[mark], mark)
		}
		seen[mark] = name
	}
	if Mark(t.Context()) != "" || Mark(WithForwarded(t.Context(), &Forwarded{Host: "h"})) != "" {
		t.Error("a request without such headers has a mark")
	}
	if Mark(Carry(context.Background(), tenant(t.Context(), "a"))) != Mark(tenant(t.Context(), "a")) {
		t.Error("the headers are not carried")
	}
}

// TestHeadersAreLost: a call that came with headers does not go on without them, in whatever words: it
// could be another client's then. One that came without goes on.
func TestHeadersAreLost(t *testing.T) {
	bubble(t, fake.Stateful, Config{}, func(t *testing.T, s *fake.Server, h *HTTP) {
		s.Tool("t", fake.Text("ok"))
		r := in("a", ``)
		r.Session.Mark = Mark(tenant(t.Context(), "acme"))
		if _, err := h.Call(tenant(t.Context(), "acme"), r, nil); err != nil {
			t.Fatal(err)
		}
		before := len(s.Seen("tools/call"))
		for name, ctx := range map[string]context.Context{"none": t.Context(), "others": tenant(t.Context(), "b")} {
			_, err := h.Call(ctx, r, nil)
			_, again := h.Resume(ctx, r, []byte(`{"era":"legacy","version":"2025-11-25","session":"s","id":"r-1","last":"1"}`), nil)
			for _, err := range []error{err, again} {
				var ue *shim.UpstreamError
				if !errors.As(err, &ue) || !errors.Is(err, errUnknownHeaders) || strings.Contains(err.Error(), "acme") {
					t.Errorf("with %s: %v", name, err)
				}
			}
		}
		if n := len(s.Seen("tools/call")); n != before {
			t.Errorf("%d calls were made without the headers", n-before)
		}
		if got := s.Seen("tools/call")[0].Header.Get("X-Tenant"); got != "acme" {
			t.Errorf("the server was sent %q", got)
		}
	})
}

// TestNewestToken: a request that the server refuses with 401 is made once more if there is a newer token
// by then, and its refusal is the client's otherwise. A call of another replica has the token
// that its owner has shown here.
func TestNewestToken(t *testing.T) {
	token, next := "Bearer old", "Bearer old"
	f := &Forwarded{
		Authorization: func() string { return token },
		Challenge: func(_ int, values []string) []string {
			token = next
			return append(values, "seen")
		},
	}
	represented := ""
	c := Config{Represent: func(principal string) *Forwarded {
		represented = principal
		return f
	}}
	bubble(t, fake.Stateful, c, func(t *testing.T, s *fake.Server, h *HTTP) {
		refused := 0
		s.On("tools/call", func(x *fake.Exchange) {
			if x.R.Header.Get("Authorization") == "Bearer old" {
				refused++
				token = next
				fake.Status(401, "", "")(x)
				return
			}
			fake.Text("ok")(x)
		})
		r := in("a", ``)
		r.Session.Principal = "alice"
		var refusal *Refusal
		var ue *shim.UpstreamError
		_, err := h.Call(t.Context(), r, nil)
		if !errors.As(err, &ue) || !errors.As(ue.Err, &refusal) || refusal.Status != 401 || refused != 1 || represented != "alice" {
			t.Errorf("without a newer token: %v, %d attempts for %q", err, refused, represented)
		}
		next = "Bearer new"
		if reply := mustCall(t, h, r); reply.IsError || refused != 2 {
			t.Errorf("with a newer token: %+v, %d attempts", reply, refused)
		}
		calls := s.Seen("tools/call")
		if got := calls[len(calls)-1].Header.Values("Authorization"); len(got) != 1 || got[0] != "Bearer new" {
			t.Errorf("the server was sent %q", got)
		}
	})
}
