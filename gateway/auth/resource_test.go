package auth

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"taskgate/gateway/config"
	"taskgate/internal/wiretest"
)

// resourceOf is the server as a protected resource, at a gateway.
func resourceOf(t *testing.T, s *oauthServer) *Resource {
	t.Helper()
	return start(t, passConfig(t, s)).Resource("up")
}

// age makes what is known of the metadata that much older.
func (r *Resource) age(by time.Duration) {
	known := r.metadata.attempts.Find(struct{}{})
	value := known.Value
	value.at = value.at.Add(-by)
	r.metadata.attempts.Put(struct{}{}, value, known.At.Add(-by), known.Until.Sub(known.At))
}

// TestServerMetadata: it is looked for where clients look, and passed on as it is.
func TestServerMetadata(t *testing.T) {
	for name, c := range map[string]struct {
		at   []string // where it is
		seen []string // what is asked for
	}{
		"with the path":    {[]string{wellKnown + "/mcp", wellKnown}, []string{wellKnown + "/mcp"}},
		"without the path": {[]string{wellKnown}, []string{wellKnown + "/mcp", wellKnown}},
		"nowhere":          {nil, []string{wellKnown + "/mcp", wellKnown}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newOAuthServer(t)
			delete(s.pages, wellKnown+"/mcp")
			want := ""
			for _, at := range c.at {
				want = s.set(at, "https://login.example")
			}
			r := resourceOf(t, s)
			for range 2 {
				got, err := r.Metadata(t.Context())
				if string(got) != want || (want == "") != errors.Is(err, ErrNoMetadata) {
					t.Errorf("%s, %v", got, err)
				}
			}
			if seen := s.seen(); !slices.Equal(seen, c.seen) {
				t.Errorf("asked for %v", seen)
			}
			if len(s.header["Authorization"]) > 0 {
				t.Error("the server is shown a token")
			}
		})
	}
}

// TestMetadataOfA401: a server says itself where its metadata is, but nowhere else than with it.
func TestMetadataOfA401(t *testing.T) {
	s := newOAuthServer(t)
	r := resourceOf(t, s)
	origin := strings.TrimSuffix(s.URL, "/mcp")
	want := s.set("/elsewhere", "https://login.example")
	if got, err := r.Metadata(t.Context()); err != nil || string(got) == want {
		t.Fatalf("%s, %v", got, err)
	}
	for _, at := range []string{
		"http://169.254.169.254/elsewhere", "https://" + strings.TrimPrefix(origin, "http://") + "/elsewhere",
		"http://user@" + strings.TrimPrefix(origin, "http://") + "/elsewhere", "/elsewhere", "%", "",
	} {
		r.Learn(at)
	}
	before := len(s.seen())
	if _, err := r.Metadata(t.Context()); err != nil || len(s.seen()) != before {
		t.Errorf("%v, and asked for %v", err, s.seen()[before:])
	}
	for range 3 { // the second time says nothing new
		r.Learn(origin + "/elsewhere")
		if got, err := r.Metadata(t.Context()); err != nil || string(got) != want {
			t.Errorf("%s, %v", got, err)
		}
	}
	if seen := s.seen()[before:]; !slices.Equal(seen, []string{"/elsewhere"}) {
		t.Errorf("asked for %v", seen)
	}
}

// TestMetadataOfATakenOverName: a server whose name the gateway has taken over names addresses under that
// name, which are at the server still; and it is asked by that name, of which it makes addresses.
func TestMetadataOfATakenOverName(t *testing.T) {
	for _, renamed := range []config.Switch{config.Off, config.On} {
		s := newOAuthServer(t)
		c := passConfig(t, s)
		c.Upstreams[0].ForwardHost = renamed
		r := start(t, c).Resource("up")
		want := s.set("/elsewhere", "https://login.example")
		r.Learn(wiretest.PublicURL + "/elsewhere")
		if got, err := r.Metadata(t.Context()); err != nil || string(got) != want {
			t.Errorf("%s, %v", got, err)
		}
		host, as, by := "gateway.example", "gateway.example", "https"
		if renamed == config.Off {
			host, as, by = strings.TrimSuffix(strings.TrimPrefix(s.URL, "http://"), "/mcp"), "", ""
		}
		if s.host != host || s.header.Get("X-Forwarded-Host") != as || s.header.Get("X-Forwarded-Proto") != by {
			t.Errorf("asked as %s, with %v", s.host, s.header)
		}
	}
}

// TestMetadataThatCannotBeHad: an old one holds as long as there is no answer; without one nothing
// is made up.
func TestMetadataThatCannotBeHad(t *testing.T) {
	for _, status := range []int{http.StatusInternalServerError, http.StatusTooManyRequests, http.StatusMisdirectedRequest, http.StatusLocked} {
		s := newOAuthServer(t)
		r := resourceOf(t, s)
		s.setStatus(status)
		if got, err := r.Metadata(t.Context()); err == nil || errors.Is(err, ErrNoMetadata) || got != nil {
			t.Errorf("%d: %s, %v", status, got, err)
		}
		s.setStatus(0)
		r.age(time.Hour)
		want := wiretest.Must(r.Metadata(t.Context()))(t)
		s.setStatus(status)
		r.age(time.Hour)
		if got, err := r.Metadata(t.Context()); err != nil || string(got) != string(want) {
			t.Errorf("%d: the old one is gone: %s, %v", status, got, err)
		}
	}
	for name, page := range map[string]string{
		"no JSON": "<html>", "of nothing": "{}", "too large": `{"resource":"` + strings.Repeat("x", maxDocument) + `"}`, "an array": "[]",
	} {
		s := newOAuthServer(t)
		s.pages[wellKnown+"/mcp"] = page
		if got, err := resourceOf(t, s).Metadata(t.Context()); !errors.Is(err, ErrNoMetadata) {
			t.Errorf("%s: %.40s, %v", name, got, err)
		}
	}
	endless := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}))
	defer endless.Close()
	if _, err := newFetcher(nil).readDocument(t.Context(), endless.URL); !isDefinite(err) {
		t.Errorf("an endless stream, as of mcp-go: %v", err)
	}
	s := newOAuthServer(t)
	s.setStatus(http.StatusFound)
	if got, err := resourceOf(t, s).Metadata(t.Context()); !errors.Is(err, ErrNoMetadata) || len(s.seen()) != 2 {
		t.Errorf("a redirect: %s, %v, asked for %v", got, err, s.seen())
	}
}

// TestMetadataHolds: whatever a server answers for a moment in the place of its metadata, such as during a
// deploy, the last good document holds, for hours, and is asked for again soon.
func TestMetadataHolds(t *testing.T) {
	for _, status := range []int{http.StatusNotFound, http.StatusForbidden, http.StatusMovedPermanently, http.StatusBadGateway} {
		i, s, m := verifying(t)
		token := "Bearer " + i.Token("alice", map[string]any{"aud": s.URL})
		alice := letIn(t, m, token).Principal
		settle := func() { // what was asked for before has been answered then
			m.resource.age(fetchFloor)
			_, _ = m.resource.metadata.renewAnswer(t.Context())
		}
		s.setStatus(status)
		for range 3 {
			m.resource.age(time.Hour)
			if c := letIn(t, m, token); c.Principal != alice {
				t.Errorf("%d: she is %+v", status, c.Principal)
			}
			if got, err := m.resource.Metadata(t.Context()); err != nil || got == nil {
				t.Errorf("%d: %v", status, err)
			}
		}
		settle()
		s.setStatus(0)
		before := len(s.seen())
		deadline := time.Now().Add(wiretest.Patience)
		for len(s.seen()) == before && time.Now().Before(deadline) {
			m.resource.age(fetchFloor)
			if _, err := m.resource.Metadata(t.Context()); err != nil {
				t.Error(err)
			}
			<-time.After(time.Millisecond)
		}
		if len(s.seen()) == before {
			t.Errorf("%d: it is not asked for again", status)
		}
		s.setStatus(status)
		settle()
		m.resource.age(holdFor)
		if got, err := m.resource.Metadata(t.Context()); err == nil {
			t.Errorf("%d: it holds for ever: %s", status, got)
		}
	}
}
