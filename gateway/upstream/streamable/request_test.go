package streamable

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"sync/atomic"
	"testing"

	"taskgate/gateway/upstream/transporttest"
)

// Where the server closes a connection just when it is used again, a notification goes out on another one, and
// a request, which may have run, does not.
func TestClosedConnection(t *testing.T) {
	const (
		notification = `{"jsonrpc":"2.0","method":"notifications/x"}`
		request      = `{"jsonrpc":"2.0","id":1,"method":"tools/call"}`
	)
	for _, c := range []struct {
		name, body string
		posts      int64
		fails      bool
	}{{"notification", notification, 3, false}, {"response", `{"jsonrpc":"2.0","id":1,"result":{}}`, 3, false}, {"request", request, 2, true}} {
		t.Run(c.name, func(t *testing.T) {
			var posts atomic.Int64
			web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if _, there := r.Header["Idempotency-Key"]; there {
					t.Error("the key was written")
				}
				if posts.Add(1) == 2 {
					panic(http.ErrAbortHandler)
				}
				w.WriteHeader(http.StatusAccepted)
			}))
			defer web.Close()
			u, err := url.Parse(web.URL)
			if err != nil {
				t.Fatal(err)
			}
			tr := New(Config{URL: u, MaxResult: 1 << 20})
			defer tr.Close(t.Context())
			if _, err := transporttest.Send(t.Context(), tr, transporttest.Message("", notification)); err != nil {
				t.Fatal(err)
			}
			if _, err := transporttest.Send(t.Context(), tr, transporttest.Message("", c.body)); (err != nil) != c.fails || posts.Load() != c.posts {
				t.Errorf("%d posts, %v", posts.Load(), err)
			}
		})
	}
}
