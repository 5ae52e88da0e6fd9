package streamable

import (
	"io"
	"net/http"
	"testing"
	"time"

	"taskgate/gateway/upstream/transporttest"
)

// A connection is given up before the server closes it, by what the server says of that.
func TestKeepAliveIsHeeded(t *testing.T) {
	said := ""
	tr := transportTo(t, "", func(w http.ResponseWriter, _ *http.Request) {
		if said != "" {
			w.Header().Set("Keep-Alive", said)
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"jsonrpc":"2.0","id":1,"result":{}}`)
	})
	usual := tr.Base.IdleConnTimeout
	for _, c := range []struct {
		said string
		want time.Duration
	}{
		{"", usual}, {"max=5", usual}, {"timeout=x", usual}, {"timeout=60", usual}, {"timeout=3, max=100", 2 * time.Second},
		{"timeout=30", 2 * time.Second}, {"max=1, Timeout=1", time.Second / 2}, {"timeout=0", 1},
	} {
		said = c.said
		in, err := transporttest.Send(t.Context(), tr, transporttest.Message("", `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`))
		transporttest.Must(t, err)
		in.Close()
		if got := tr.current(); got.IdleConnTimeout != c.want || got.DisableKeepAlives != (c.want == 1) {
			t.Errorf("%q: %v", c.said, got.IdleConnTimeout)
		}
	}
}
