package upstream

import (
	"net/http/httptest"
	"testing"

	"taskgate/gateway/upstream/transporttest"
)

// TestTransportSuite: real HTTP keeps the contract of all transports.
func TestTransportSuite(t *testing.T) {
	transporttest.Suite(t, func(t *testing.T) *transporttest.Peer {
		s := transporttest.NewHTTP()
		web := httptest.NewServer(s)
		tr := newTransport(Config{}.withDefaults())
		s.Die = web.CloseClientConnections
		t.Cleanup(func() {
			s.Forget()
			web.CloseClientConnections()
			web.Close()
			tr.CloseIdleConnections()
		})
		return &transporttest.Peer{Transport: tr, URL: web.URL, Dead: s.Dead}
	})
}
