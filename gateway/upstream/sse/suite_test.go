package sse

import (
	"net/http/httptest"
	"testing"

	"taskgate/gateway/upstream/transporttest"
)

// TestTransportSuite: connections of HTTP+SSE keep the contract of all transports, as does
// Streamable HTTP where it is not known which of both a server speaks.
func TestTransportSuite(t *testing.T) {
	for name, begin := range map[string]func() *transporttest.Server{
		"Older": transporttest.NewSSE, "Newer": transporttest.NewHTTP,
	} {
		t.Run(name, func(t *testing.T) {
			transporttest.Suite(t, func(t *testing.T) *transporttest.Peer {
				s := begin()
				web := httptest.NewServer(s)
				s.Die = web.CloseClientConnections
				t.Cleanup(func() {
					s.Forget()
					web.CloseClientConnections()
					web.Close()
				})
				return &transporttest.Peer{Transport: newClient(t, web.URL+"/", Config{}), Dead: s.Dead}
			})
		})
	}
}
