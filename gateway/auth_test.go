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
	"taskgate/internal/wiretest"
)

// What a client is told that shows a key which is not good.
const (
	challengeInvalid = `Bearer realm="taskgate", error="invalid_token", error_description="the key is not known"`
	challengeBroken  = `Bearer realm="taskgate", error="invalid_request", error_description="Authorization must be: Bearer KEY"`
)

// newGuarded is a gateway that wants keys.
func newGuarded(t *testing.T) http.Handler {
	s := newStage(t)
	s.config = config.Default()
	s.config.Upstreams = []*config.Upstream{config.NewUpstream("up", "http://up.example/")}
	wiretest.WithKeys(s.config)
	s.up.Era, s.up.Raw = mcp.Legacy, []byte(`{"capabilities":{}}`)
	return s.start()
}

// TestChallenge holds every kind of Authorization against every route (Z2, Z3).
func TestChallenge(t *testing.T) {
	h := newGuarded(t)
	for name, c := range map[string]struct {
		authorization []string
		status        int
		challenge     string
	}{
		"none":         {nil, 401, `Bearer realm="taskgate"`},
		"other scheme": {[]string{"Basic " + wiretest.AliceKey}, 401, `Bearer realm="taskgate"`},
		"unknown":      {[]string{"Bearer " + wiretest.AliceKey + "0"}, 401, challengeInvalid},
		"hash":         {[]string{"Bearer " + config.HashKey(wiretest.AliceKey)}, 401, challengeInvalid},
		"principal":    {[]string{"Bearer alice"}, 401, challengeInvalid},
		"empty":        {[]string{"Bearer"}, 400, challengeBroken},
		"blank":        {[]string{"Bearer  "}, 400, challengeBroken},
		"no scheme":    {[]string{wiretest.AliceKey}, 401, `Bearer realm="taskgate"`},
		"two words":    {[]string{"Bearer " + wiretest.AliceKey + " x"}, 400, challengeBroken},
		"list":         {[]string{"Bearer " + wiretest.AliceKey + ", Bearer " + wiretest.BobKey}, 400, challengeBroken},
		"odd sign":     {[]string{"Bearer alice\x00"}, 400, challengeBroken},
		"only padding": {[]string{"Bearer ="}, 400, challengeBroken},
		"twice":        {[]string{"Bearer " + wiretest.AliceKey, "Bearer " + wiretest.AliceKey}, 400, challengeBroken},
	} {
		t.Run(name, func(t *testing.T) {
			for _, method := range []string{"POST", "GET", "DELETE"} {
				r := httptest.NewRequest(method, "/up/mcp?access_token="+wiretest.AliceKey, unreadable401{t})
				r.Header["Authorization"] = c.authorization
				w := serve(h, r)
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

// TestPreflightNeedsNoKey: a browser asks whether it may send a key before it
// sends one, and a page may read the challenge.
func TestPreflightNeedsNoKey(t *testing.T) {
	h := newGuarded(t)
	send := func(method string) *httptest.ResponseRecorder {
		r := httptest.NewRequest(method, "/up/mcp", nil)
		r.Header.Set("Origin", "http://localhost:5173")
		if method == http.MethodOptions {
			r.Header.Set("Access-Control-Request-Method", "POST")
			r.Header.Set("Access-Control-Request-Headers", "authorization,content-type")
		}
		return serve(h, r)
	}
	if w := send("OPTIONS"); w.Code != http.StatusNoContent || w.Header().Get("Access-Control-Allow-Headers") != "authorization,content-type" {
		t.Errorf("preflight: %d %v", w.Code, w.Header())
	}
	if w := send("GET"); w.Code != http.StatusUnauthorized || !strings.Contains(w.Header().Get("Access-Control-Expose-Headers"), "Www-Authenticate") {
		t.Errorf("GET: %d %v", w.Code, w.Header())
	}
}

// TestStrangersBodyIsNotAwaited: who shows no key gets the answer before the body
// has come, and is not given time to send it.
func TestStrangersBodyIsNotAwaited(t *testing.T) {
	front := httptest.NewServer(newGuarded(t))
	t.Cleanup(front.Close)
	for name, head := range map[string]string{
		"length":  "Content-Length: 1000",
		"chunked": "Transfer-Encoding: chunked",
		"expect":  "Expect: 100-continue\r\nContent-Length: 1000",
	} {
		t.Run(name, func(t *testing.T) {
			conn := wiretest.Must(net.Dial("tcp", front.Listener.Addr().String()))(t)
			defer conn.Close()
			wiretest.Check(t, conn.SetDeadline(time.Now().Add(wiretest.Patience)))
			wiretest.Must(io.WriteString(conn, "POST /up/mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"+head+"\r\n\r\n"))(t)
			in := bufio.NewReader(conn)
			resp := wiretest.Must(http.ReadResponse(in, nil))(t)
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
	front := httptest.NewServer(newGuarded(t))
	t.Cleanup(front.Close)
	conn := wiretest.Must(net.Dial("tcp", front.Listener.Addr().String()))(t)
	defer conn.Close()
	wiretest.Check(t, conn.SetDeadline(time.Now().Add(wiretest.Patience)))
	in := bufio.NewReader(conn)
	for _, key := range []string{"", wiretest.AliceKey} {
		r := wiretest.Must(http.NewRequest("POST", front.URL+"/up/mcp", strings.NewReader(wiretest.InitializeBody)))(t)
		r.Header.Set("Content-Type", mcp.TypeJSON)
		want := http.StatusUnauthorized
		if key != "" {
			want = http.StatusOK
			r.Header.Set("Authorization", "Bearer "+key)
		}
		wiretest.Check(t, r.Write(conn))
		resp := wiretest.Must(http.ReadResponse(in, r))(t)
		if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.StatusCode != want {
			t.Errorf("status %d, want %d (%v)", resp.StatusCode, want, err)
		}
	}
}
