package gateway

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"taskgate/gateway/config"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/shim"
)

// The keys of these tests: alice is changing hers.
const (
	aliceKey  = "alice-0123456789abcdef"
	aliceNext = "alice-fedcba9876543210="
	bobKey    = "bob+0123456789/abcdef"
)

func keyOf(principal, key string) config.BearerKey {
	return config.BearerKey{Principal: principal, SHA256: config.HashKey(key)}
}

func withKeys(c *config.Config) {
	c.Auth.Keys = []config.BearerKey{keyOf("alice", aliceKey), keyOf("alice", aliceNext), keyOf("bob", bobKey)}
	c.Auth.Keys[0].SHA256 = strings.ToUpper(c.Auth.Keys[0].SHA256)
}

// TestChallenge holds every kind of Authorization against every route (Z2, Z3).
func TestChallenge(t *testing.T) {
	h := newLegacyServer(t, legScript{Era: "legacy", Raw: []byte(`{"capabilities":{}}`)}, withKeys).Handler()
	for name, c := range map[string]struct {
		authorization []string
		status        int
		challenge     string
	}{
		"none":         {nil, 401, `Bearer realm="taskgate"`},
		"other scheme": {[]string{"Basic " + aliceKey}, 401, `Bearer realm="taskgate"`},
		"unknown":      {[]string{"Bearer " + aliceKey + "0"}, 401, challengeInvalid},
		"hash":         {[]string{"Bearer " + keyOf("", aliceKey).SHA256}, 401, challengeInvalid},
		"principal":    {[]string{"Bearer alice"}, 401, challengeInvalid},
		"empty":        {[]string{"Bearer"}, 400, challengeBroken},
		"blank":        {[]string{"Bearer  "}, 400, challengeBroken},
		"no scheme":    {[]string{aliceKey}, 401, `Bearer realm="taskgate"`},
		"two words":    {[]string{"Bearer " + aliceKey + " x"}, 400, challengeBroken},
		"list":         {[]string{"Bearer " + aliceKey + ", Bearer " + bobKey}, 400, challengeBroken},
		"odd sign":     {[]string{"Bearer alice\x00"}, 400, challengeBroken},
		"only padding": {[]string{"Bearer ="}, 400, challengeBroken},
		"twice":        {[]string{"Bearer " + aliceKey, "Bearer " + aliceKey}, 400, challengeBroken},
	} {
		t.Run(name, func(t *testing.T) {
			for _, method := range []string{"POST", "GET", "DELETE"} {
				r := httptest.NewRequest(method, "/up/mcp?access_token="+aliceKey, unreadable401{t})
				r.Host = "127.0.0.1"
				r.Header["Authorization"] = c.authorization
				w := httptest.NewRecorder()
				h.ServeHTTP(w, r)
				if w.Code != c.status || w.Header().Get("WWW-Authenticate") != c.challenge {
					t.Errorf("%s: %d, %q", method, w.Code, w.Header().Get("WWW-Authenticate"))
				}
				msg, err := jsonrpc.Parse(w.Body.Bytes())
				if err != nil || msg.Kind != jsonrpc.ErrorResponse || strings.Contains(w.Body.String(), `"id":`) {
					t.Errorf("%s: %s", method, w.Body)
				}
				if strings.Contains(w.Body.String(), "alice-") {
					t.Errorf("%s shows the key: %s", method, w.Body)
				}
			}
		})
	}
}

// unreadable401 is the body of a request that has no business to be read.
type unreadable401 struct{ t *testing.T }

func (b unreadable401) Read([]byte) (int, error) {
	b.t.Error("the body is read")
	return 0, io.EOF
}

// TestKeysAreAccepted: the scheme's case does not matter, nor does blank space
// around the key, and every key of a principal is as good.
func TestKeysAreAccepted(t *testing.T) {
	k, err := newKeyring(func() config.Auth { c := config.Default(); withKeys(c); return c.Auth }())
	if err != nil {
		t.Fatal(err)
	}
	for value, want := range map[string]string{
		"Bearer " + aliceKey:          "alice",
		"bearer   " + aliceNext + " ": "alice",
		"BEARER " + bobKey:            "bob",
	} {
		got := "nobody"
		r := httptest.NewRequest("POST", "/", nil)
		r.Header.Set("Authorization", value)
		w := httptest.NewRecorder()
		k.authenticate(func(_ http.ResponseWriter, _ *http.Request, p shim.Principal) { got = p.Subject })(w, r)
		if got != want {
			t.Errorf("%q: %s, %d", value, got, w.Code)
		}
	}
}

// TestBadKeyring: a configuration that nobody has validated cannot make a key
// that fits more than it should.
func TestBadKeyring(t *testing.T) {
	good := keyOf("alice", aliceKey)
	for name, bad := range map[string]config.BearerKey{
		"short":        {Principal: "alice", SHA256: good.SHA256[:62]},
		"long":         {Principal: "alice", SHA256: good.SHA256 + "00"},
		"no hex":       {Principal: "alice", SHA256: strings.Repeat("x", 64)},
		"no hash":      {Principal: "alice"},
		"no principal": {SHA256: good.SHA256},
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if p := recover(); p != nil {
					t.Errorf("panic: %v", p)
				}
			}()
			if _, err := newKeyring(config.Auth{Keys: []config.BearerKey{bad}}); err == nil {
				t.Error("accepted")
			}
		})
	}
}

// TestPreflightNeedsNoKey: a browser asks whether it may send a key before it
// sends one, and a page may read the challenge.
func TestPreflightNeedsNoKey(t *testing.T) {
	h := newLegacyServer(t, legScript{}, withKeys).Handler()
	send := func(method string) *httptest.ResponseRecorder {
		r := httptest.NewRequest(method, "/up/mcp", nil)
		r.Host = "127.0.0.1"
		r.Header.Set("Origin", "http://localhost:5173")
		if method == http.MethodOptions {
			r.Header.Set("Access-Control-Request-Method", "POST")
			r.Header.Set("Access-Control-Request-Headers", "authorization,content-type")
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w
	}
	if w := send("OPTIONS"); w.Code != http.StatusNoContent || w.Header().Get("Access-Control-Allow-Headers") != "authorization,content-type" {
		t.Errorf("preflight: %d %v", w.Code, w.Header())
	}
	if w := send("GET"); w.Code != http.StatusUnauthorized || !strings.Contains(w.Header().Get("Access-Control-Expose-Headers"), headerAuthenticate) {
		t.Errorf("GET: %d %v", w.Code, w.Header())
	}
}

// TestStrangersBodyIsNotAwaited: who shows no key gets the answer before the body
// has come, and is not given time to send it.
func TestStrangersBodyIsNotAwaited(t *testing.T) {
	front := httptest.NewServer(newLegacyServer(t, legScript{}, withKeys).Handler())
	t.Cleanup(front.Close)
	for name, head := range map[string]string{
		"length":  "Content-Length: 1000",
		"chunked": "Transfer-Encoding: chunked",
		"expect":  "Expect: 100-continue\r\nContent-Length: 1000",
	} {
		t.Run(name, func(t *testing.T) {
			conn, err := net.Dial("tcp", front.Listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
				t.Fatal(err)
			}
			if _, err := io.WriteString(conn, "POST /up/mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"+head+"\r\n\r\n"); err != nil {
				t.Fatal(err)
			}
			in := bufio.NewReader(conn)
			resp, err := http.ReadResponse(in, nil)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := io.Copy(io.Discard, resp.Body); err != nil {
				t.Error(err)
			}
			if resp.StatusCode != http.StatusUnauthorized {
				t.Errorf("status %d", resp.StatusCode)
			}
			if _, err := in.ReadByte(); err != io.EOF {
				t.Errorf("the connection is kept: %v", err)
			}
		})
	}
}

// TestRefusedConnectionIsKept: a client that forgot its key and sent a whole
// request goes on on the same connection.
func TestRefusedConnectionIsKept(t *testing.T) {
	front := httptest.NewServer(newLegacyServer(t, legScript{Era: "legacy", Raw: []byte(`{"capabilities":{}}`)}, withKeys).Handler())
	t.Cleanup(front.Close)
	conn, err := net.Dial("tcp", front.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	in := bufio.NewReader(conn)
	for _, key := range []string{"", aliceKey} {
		r, err := http.NewRequest("POST", front.URL+"/up/mcp", strings.NewReader(initializeBody))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", mcp.TypeJSON)
		want := http.StatusUnauthorized
		if key != "" {
			want = http.StatusOK
			r.Header.Set("Authorization", "Bearer "+key)
		}
		if err := r.Write(conn); err != nil {
			t.Fatal(err)
		}
		resp, err := http.ReadResponse(in, r)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.StatusCode != want {
			t.Errorf("status %d, want %d (%v)", resp.StatusCode, want, err)
		}
	}
}

// BenchmarkAuthenticate is what a key costs each request.
func BenchmarkAuthenticate(b *testing.B) {
	c := config.Default()
	for range 1000 {
		c.Auth.Keys = append(c.Auth.Keys, keyOf("p", strings.Repeat("x", len(c.Auth.Keys)+1)))
	}
	c.Auth.Keys = append(c.Auth.Keys, keyOf("alice", aliceKey))
	k, err := newKeyring(c.Auth)
	if err != nil {
		b.Fatal(err)
	}
	h := k.authenticate(func(_ http.ResponseWriter, _ *http.Request, p shim.Principal) {
		if p.Subject != "alice" {
			b.Fatal(p)
		}
	})
	r := httptest.NewRequest("POST", "/", nil)
	r.Header.Set("Authorization", "Bearer "+aliceKey)
	b.ReportAllocs()
	for b.Loop() {
		h(nil, r)
	}
}

// TestAuthenticateAllocatesNothing keeps the check of a good key off the heap.
func TestAuthenticateAllocatesNothing(t *testing.T) {
	k, err := newKeyring(config.Auth{Keys: []config.BearerKey{keyOf("alice", aliceKey)}})
	if err != nil {
		t.Fatal(err)
	}
	h := k.authenticate(func(http.ResponseWriter, *http.Request, shim.Principal) {})
	r := httptest.NewRequest("POST", "/", nil)
	r.Header.Set("Authorization", "Bearer "+aliceKey)
	if n := testing.AllocsPerRun(100, func() { h(nil, r) }); n > 0 {
		t.Errorf("%v allocations", n)
	}
}
