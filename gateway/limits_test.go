package gateway

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
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
		s.config.Limits.MaxCalls = 1
		s.up.Era, s.up.Capabilities = mcp.Modern, json.RawMessage(`{"tools":{}}`)
		s.up.Replies = map[string]fakeReply{
			"tools/call hang": {Block: true},
			"tools/call":      {Result: json.RawMessage(`{"resultType":"complete","content":[]}`)},
		}
		const task = "00000000-0000-4000-8000-000000000001"
		s.shim.tasks[task] = &fakeTask{Status: shim.Working, Origin: "ext", Created: time.Now()}
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
			params := `{"name":"x","taskId":"` + task + `","inputResponses":{},"_meta":{$TASKS}}`
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

// rated is a stage with a rate of one request per second.
func rated(t *testing.T) *stage {
	s := newStage(t)
	s.config.Rate = 1
	s.up.Era, s.up.Capabilities = mcp.Modern, json.RawMessage(`{"tools":{}}`)
	return s
}

func discover() *http.Request { return wiretest.ModernPost("server/discover", `{"_meta":{$META}}`) }

// TestRateOfWhom: a rate is that of the principal or, without one, of the address that the
// connection comes from. The second request is too early only if it is of the same caller.
func TestRateOfWhom(t *testing.T) {
	type from struct{ key, address, method string }
	const alice, bob, nobody = wiretest.AliceKey, wiretest.BobKey, "nobody-0123456789abcdef"
	for name, c := range map[string]struct {
		first, second from
		want          int
	}{
		"principal":        {from{key: alice, address: "192.0.2.1:1"}, from{key: alice, address: "192.0.2.2:1"}, 429},
		"other principal":  {from{key: alice, address: "192.0.2.1:1"}, from{key: bob, address: "192.0.2.1:1"}, 200},
		"stranger":         {from{key: nobody, address: "192.0.2.1:1"}, from{key: nobody + "2", address: "192.0.2.1:2"}, 429},
		"stranger, caller": {from{key: nobody, address: "192.0.2.1:1"}, from{key: alice, address: "192.0.2.1:1"}, 200},
		"IPv4":             {from{address: "192.0.2.1:1"}, from{address: "192.0.2.1:2"}, 429},
		"other IPv4":       {from{address: "192.0.2.1:1"}, from{address: "192.0.2.2:1"}, 200},
		"IPv4 in IPv6":     {from{address: "[::ffff:192.0.2.1]:1"}, from{address: "192.0.2.1:2"}, 429},
		"IPv6 network":     {from{address: "[2001:db8:1:2:3:4:5:6]:1"}, from{address: "[2001:db8:1:2::1]:1"}, 429},
		"other network":    {from{address: "[2001:db8:1:2:3:4:5:6]:1"}, from{address: "[2001:db8:1:3::1]:1"}, 200},
		"link-local":       {from{address: "[fe80::1%eth0]:1"}, from{address: "[fe80::2%eth1]:1"}, 429},
		"not an address":   {from{address: "@"}, from{address: "@"}, 429},
		"GET":              {from{address: "192.0.2.1:1", method: http.MethodGet}, from{address: "192.0.2.1:1"}, 429},
		"DELETE":           {from{address: "192.0.2.1:1", method: http.MethodDelete}, from{address: "192.0.2.1:1"}, 429},
		"OPTIONS":          {from{address: "192.0.2.1:1", method: http.MethodOptions}, from{address: "192.0.2.1:1"}, 200},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := rated(t)
				if c.first.key != "" {
					wiretest.WithKeys(s.config)
				}
				send := func(f from) int {
					r := discover()
					r.Method, r.RemoteAddr = cmp.Or(f.method, r.Method), f.address
					if f.key != "" {
						r.Header.Set("Authorization", "Bearer "+f.key)
					}
					return s.status(r)
				}
				if got := send(c.first); got == http.StatusTooManyRequests {
					t.Fatalf("the first: %d", got)
				}
				if got := send(c.second); got != c.want {
					t.Errorf("the second: %d, want %d", got, c.want)
				}
				<-time.After(time.Second)
				if got := send(c.second); got == http.StatusTooManyRequests {
					t.Errorf("a second later: %d", got)
				}
			})
		})
	}
}

// TestRateRefuses: a request that comes too early is answered before its body is read, and is told
// when to come again.
func TestRateRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := rated(t)
		s.config.Rate = 2
		s.status(discover())
		s.status(discover())
		const want = `{"jsonrpc":"2.0","error":{"code":-32603,"message":"too many requests of this caller","data":{"retryAfterMs":500}}}`
		for range 3 { // one that is refused does not count
			if rec := serve(s.start(), httptest.NewRequest(http.MethodPost, "/mcp", unreadable401{t})); rec.Code != http.StatusTooManyRequests || rec.Header().Get("Retry-After") != "1" || strings.TrimSpace(rec.Body.String()) != want {
				t.Errorf("%d %v %s", rec.Code, rec.Header(), rec.Body)
			}
		}
	})
}

// TestRateBeforeLookup: nothing is looked up for a stranger who sends too much, and a caller whose
// token is remembered goes on from the same address.
func TestRateBeforeLookup(t *testing.T) {
	var lookups atomic.Int32
	issuer := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		lookups.Add(1)
		fmt.Fprintf(w, `{"active":%t,"sub":"alice","aud":"http://127.0.0.1"}`, r.FormValue("token") == "good")
	}))
	defer issuer.Close()
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	s := rated(t)
	s.config.PublicURL = "http://127.0.0.1"
	pass := config.NewPassthrough()
	pass.Audiences = []string{"http://127.0.0.1"}
	pass.Introspection = &config.Introspection{URL: issuer.URL, ClientID: "gateway", ClientSecret: "x"}
	s.config.Upstreams[0].Auth = &config.UpstreamAuth{Passthrough: pass}
	s.config.Upstreams[0].URL = server.URL
	send := func(token string) int {
		r := discover()
		r.Header.Set("Authorization", "Bearer "+token)
		return s.status(r)
	}
	if got := send("good"); got != http.StatusOK {
		t.Fatalf("a good token: %d", got)
	}
	for i := range 10 {
		if got, want := send(fmt.Sprint("made-up-", i)), http.StatusTooManyRequests; i > 2 && got != want {
			t.Errorf("try %d: %d, want %d", i, got, want)
		}
	}
	if n := lookups.Load(); n > 4 {
		t.Errorf("%d look-ups", n)
	}
	if got := send("good"); got != http.StatusOK {
		t.Errorf("the good token after that: %d", got)
	}
}

// TestStrangersLeaveRoom: callers who do not sign in take half of the calls and of the streams at most, and one
// address half of that. So there is room for those who do, at any upstream.
func TestStrangersLeaveRoom(t *testing.T) {
	const nobody, other, loopback = "192.0.2.1:1", "198.51.100.1:1", "127.0.0.1:1"
	for name, c := range map[string]struct {
		addresses []string // of strangers that have begun something
		key       string   // of the next
		address   string
		want      int
	}{
		"stranger":                    {[]string{nobody}, "", other, 200},
		"address that has its share":  {[]string{nobody}, "", nobody, 503},
		"strangers have theirs":       {[]string{nobody, other}, "", loopback, 503},
		"key beside strangers":        {[]string{nobody, other}, wiretest.AliceKey, nobody, 200},
		"loopback is many callers":    {[]string{loopback}, "", loopback, 200},
		"strangers behind a loopback": {[]string{loopback, loopback}, "", other, 503},
		"key beside a loopback":       {[]string{loopback, loopback}, wiretest.AliceKey, loopback, 200},
	} {
		for _, method := range []string{"tools/call", "subscriptions/listen"} {
			t.Run(method+" "+name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := newStage(t)
					s.config.Limits.MaxCalls, s.config.Limits.MaxStreams = 4, 4
					open := *s.config.Upstreams[0]
					open.Name, open.Path, open.Auth = "open", "/open", &config.UpstreamAuth{Anonymous: config.On}
					s.config.Upstreams = append(s.config.Upstreams, &open)
					wiretest.WithKeys(s.config)
					s.up.Era, s.up.Capabilities = mcp.Modern, json.RawMessage(`{"tools":{"listChanged":true}}`)
					s.up.Replies = map[string]fakeReply{"tools/call hang": {Block: true}, "tools/call": {Result: json.RawMessage(`{"resultType":"complete","content":[]}`)}}
					s.start()
					begin := func(ctx context.Context, tool, key, address string) <-chan int {
						r := wiretest.ModernPost(method, `{"name":"`+tool+`","notifications":{"toolsListChanged":true},"_meta":{$META}}`).WithContext(ctx)
						if r.RemoteAddr = address; key != "" {
							r.Header.Set("Authorization", "Bearer "+key)
						} else {
							r.URL.Path = "/open"
						}
						done := make(chan int, 1)
						go func() { done <- s.status(r) }()
						synctest.Wait()
						return done
					}
					ctx, leave := context.WithCancel(t.Context())
					var all []<-chan int
					for _, address := range c.addresses {
						all = append(all, begin(ctx, "hang", "", address))
					}
					next := begin(ctx, "quick", c.key, c.address)
					leave()
					if got := <-next; got != c.want {
						t.Errorf("the next one gets %d, want %d", got, c.want)
					}
					for _, one := range all {
						<-one
					}
				})
			})
		}
	}
}

// TestLimitsAreLogged: a limit that refuses clients, and one that is near, are a line each, once a minute, with how
// often it happened.
func TestLimitsAreLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, log := newStage(t), &bytes.Buffer{}
		s.log = slog.New(slog.NewTextHandler(log, nil))
		s.config.Limits.MaxCalls = 1
		s.up.Era, s.up.Capabilities = mcp.Modern, json.RawMessage(`{"tools":{}}`)
		s.up.Replies = map[string]fakeReply{"tools/call hang": {Block: true}}
		s.start()
		ctx, leave := context.WithCancel(t.Context())
		done := make(chan int, 1)
		go func() {
			done <- s.status(wiretest.ModernPost("tools/call", `{"name":"hang","_meta":{$META}}`).WithContext(ctx))
		}()
		synctest.Wait()
		watched := make(chan error, 1)
		go func() { watched <- s.gateway.watchUsage(ctx) }()
		for range 5 {
			if got := s.status(discover()); got != http.StatusServiceUnavailable {
				t.Fatalf("one too many: %d", got)
			}
		}
		<-time.After(time.Minute + time.Second)
		leave()
		<-done
		<-watched
		for line, want := range map[string]int{
			`msg="a limit refuses clients" limit=max_calls times=1`: 1, `msg="a limit refuses clients" limit=max_calls times=4`: 1,
			`msg="a limit is nearly reached" limit=max_calls times=1`: 1,
		} {
			if got := strings.Count(log.String(), line); got != want {
				t.Errorf("%d times %s in\n%s", got, line, log.String())
			}
		}
	})
}

// TestBudgetOwners: where some callers sign in, all others are one in the budget of bytes.
func TestBudgetOwners(t *testing.T) {
	for name, c := range map[string]struct {
		caller shim.Principal
		signed bool
		want   string
	}{
		"caller with a key":      {shim.Principal{Subject: "alice"}, true, "alice"},
		"stranger with a token":  {shim.Principal{Subject: "token:1", Stranger: true}, true, strangers},
		"anonymous beside keys":  {shim.Principal{}, true, strangers},
		"anonymous among others": {shim.Principal{}, false, ""},
	} {
		cfg := config.FromFlags("http://127.0.0.1:1/mcp")
		if c.signed {
			wiretest.WithKeys(cfg)
		}
		if got := (&route{table: &table{config: cfg}}).budgetOwner(c.caller); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
