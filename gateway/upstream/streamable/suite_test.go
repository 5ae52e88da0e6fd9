package streamable

import (
	"net/http/httptest"
	"net/url"
	"testing"

	"taskgate/gateway/upstream/transporttest"
)

// TestTransportSuite: Streamable HTTP keeps the contract of all transports.
func TestTransportSuite(t *testing.T) {
	transporttest.Suite(t, func(t *testing.T) *transporttest.Peer {
		s := transporttest.NewHTTP()
		web := httptest.NewServer(s)
		u, err := url.Parse(web.URL)
		transporttest.Must(t, err)
		tr := New(Config{URL: u, MaxResult: 32 << 20})
		s.Die = web.CloseClientConnections
		t.Cleanup(func() {
			s.Forget()
			web.CloseClientConnections()
			web.Close()
			_ = tr.Close(t.Context())
		})
		return &transporttest.Peer{Transport: tr, Dead: s.Dead}
	})
}
