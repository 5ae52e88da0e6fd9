package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"taskgate/gateway/config"
	"taskgate/internal/mcp"
	"taskgate/internal/wiretest"
	"taskgate/shim"
)

// status serves a request and returns the status.
func (s *stage) status(r *http.Request) int {
	rec := httptest.NewRecorder()
	s.start().ServeHTTP(rec, r)
	return rec.Code
}

// TestCallsAndRoom: when all places for calls are taken, what makes room still goes through, and
// a call that ends gives its place back.
func TestCallsAndRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t)
		s.config.MaxCalls = 1
		s.up.Era, s.up.Capabilities = mcp.Modern, json.RawMessage(`{"tools":{}}`)
		s.up.Replies = map[string]fakeReply{
			"tools/call hang": {Block: true},
			"tools/call":      {Result: json.RawMessage(`{"resultType":"complete","content":[]}`)},
		}
		s.shim.tasks[benchTask] = &fakeTask{Status: shim.Working, Origin: "ext", Created: time.Now()}
		call := func() *http.Request { return wiretest.ModernPost("tools/call", `{"name":"quick","_meta":{$META}}`) }
		if got := s.status(call()); got != http.StatusOK {
			t.Fatalf("before: %d", got)
		}
		ctx, leave := context.WithCancel(t.Context())
		done := make(chan int, 1)
		go func() {
			done <- s.status(wiretest.ModernPost("tools/call", `{"name":"hang","_meta":{$META}}`).WithContext(ctx))
		}()
		synctest.Wait()
		for method, want := range map[string]int{"tools/call": 503, "tools/list": 503, "tasks/get": 200, "tasks/update": 200, "tasks/cancel": 200} {
			params := `{"name":"x","taskId":"` + benchTask + `","inputResponses":{},"_meta":{$TASKS}}`
			if got := s.status(wiretest.ModernPost(method, params)); got != want {
				t.Errorf("%s: %d, want %d", method, got, want)
			}
		}
		leave()
		<-done
		if got := s.status(call()); got != http.StatusOK {
			t.Errorf("after: %d", got)
		}
	})
}

// asked is what a rate was asked.
type asked struct {
	all  []string
	wait time.Duration
	err  error
}

func (a *asked) take(_ context.Context, caller string, n int) (time.Duration, error) {
	a.all = append(a.all, fmt.Sprint(caller, " ", n))
	return a.wait, a.err
}

// rated is a stage with a rate.
func rated(t *testing.T) (*stage, *asked) {
	s, a := newStage(t), &asked{}
	s.config.Rate = config.Rate{Requests: 10}
	s.rate = a.take
	s.up.Era, s.up.Capabilities = mcp.Modern, json.RawMessage(`{"tools":{}}`)
	return s, a
}

func discover() *http.Request { return wiretest.ModernPost("server/discover", `{"_meta":{$META}}`) }

// TestRateOfWhom: a rate is that of the principal or, without one, of the address that the
// connection comes from, and each message of a batch counts.
func TestRateOfWhom(t *testing.T) {
	for name, c := range map[string]struct {
		key, from, method, body string
		want                    []string
	}{
		"principal":    {key: wiretest.AliceKey, from: "192.0.2.1:1234", want: []string{"p:alice 1"}},
		"stranger":     {key: "nobody-0123456789abcdef", from: "192.0.2.1:1234"}, // 401
		"IPv4":         {from: "192.0.2.1:1234", want: []string{"a:192.0.2.1 1"}},
		"IPv4 in IPv6": {from: "[::ffff:192.0.2.1]:1234", want: []string{"a:192.0.2.1 1"}},
		"IPv6":         {from: "[2001:db8:1:2:3:4:5:6]:1234", want: []string{"a:2001:db8:1:2:: 1"}},
		"link-local":   {from: "[fe80::1%eth0]:1234", want: []string{"a:fe80:: 1"}},
		"other":        {from: "@", want: []string{"a:@ 1"}},
		"batch":        {from: "192.0.2.1:1234", body: `[{"jsonrpc":"2.0","method":"a"},{"jsonrpc":"2.0","method":"b"},{"jsonrpc":"2.0","method":"c"}]`, want: []string{"a:192.0.2.1 1", "a:192.0.2.1 2"}},
		"GET":          {from: "192.0.2.1:1234", method: http.MethodGet, want: []string{"a:192.0.2.1 1"}},
		"DELETE":       {from: "192.0.2.1:1234", method: http.MethodDelete, want: []string{"a:192.0.2.1 1"}},
		"OPTIONS":      {from: "192.0.2.1:1234", method: http.MethodOptions},
	} {
		t.Run(name, func(t *testing.T) {
			s, a := rated(t)
			r := discover()
			if c.body != "" {
				header := r.Header
				r = httptest.NewRequest(http.MethodPost, "/mcp", strings.NewReader(c.body))
				r.Header, r.Host = header, "127.0.0.1"
				r.Header.Del(mcp.HeaderProtocolVersion)
			}
			if c.method != "" {
				r.Method = c.method
			}
			if c.key != "" {
				wiretest.WithKeys(s.config)
				r.Header.Set("Authorization", "Bearer "+c.key)
			}
			r.RemoteAddr = c.from
			s.status(r)
			if !slices.Equal(a.all, c.want) {
				t.Errorf("asked %q, want %q", a.all, c.want)
			}
		})
	}
}

// TestRateRefuses: what comes too early is answered before its body is read, and is told when to
// come again.
func TestRateRefuses(t *testing.T) {
	s, a := rated(t)
	a.wait = 1500 * time.Millisecond
	r := httptest.NewRequest(http.MethodPost, "/mcp", unreadable401{t})
	r.Host = "127.0.0.1"
	rec := httptest.NewRecorder()
	s.start().ServeHTTP(rec, r)
	const want = `{"jsonrpc":"2.0","error":{"code":-32603,"message":"too many requests of this caller","data":{"retryAfterMs":1500}}}`
	if rec.Code != http.StatusTooManyRequests || rec.Header().Get("Retry-After") != "2" || strings.TrimSpace(rec.Body.String()) != want {
		t.Errorf("%d %v %s", rec.Code, rec.Header(), rec.Body)
	}
}

// TestRateWithoutStore: while the store does not answer, requests are let in. Each asks, so that
// the rate holds again as soon as the store is back.
func TestRateWithoutStore(t *testing.T) {
	s, a := rated(t)
	takes := func(want int) {
		t.Helper()
		if a.all = nil; s.status(discover()) != want || len(a.all) != 1 {
			t.Errorf("not %d, or asked %q", want, a.all)
		}
	}
	a.err = errors.New("away")
	takes(http.StatusOK)
	takes(http.StatusOK)
	a.err, a.wait = nil, time.Second
	takes(http.StatusTooManyRequests)
}

// TestRateOfAClientThatHasGone: a client cannot leave before it is counted, and have its request
// served.
func TestRateOfAClientThatHasGone(t *testing.T) {
	s, a := rated(t)
	a.err = context.Canceled
	ctx, leave := context.WithCancel(t.Context())
	leave()
	if got := s.status(discover().WithContext(ctx)); got != http.StatusTooManyRequests {
		t.Errorf("status %d", got)
	}
}

// TestRateOff: where no rate is configured, nobody is asked.
func TestRateOff(t *testing.T) {
	s, a := rated(t)
	s.config.Rate = config.Rate{}
	if got := s.status(discover()); got != http.StatusOK || a.all != nil {
		t.Errorf("%d, asked %q", got, a.all)
	}
	if s.gateway.rate != nil {
		t.Error("there is a rate")
	}
}
