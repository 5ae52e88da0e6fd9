package sse

import (
	"net/http/httptest"
	"testing"

	"taskgate/gateway/upstream/transporttest"
)

// TestTransportSuite: connections of HTTP+SSE keep the contract of all transports, as does
// Streamable HTTP where it is not known which of both a server speaks.
func TestTransportSuite(t *testing.T) {
	for name, c := range map[string]struct {
		server func() *transporttest.Server
		config Config
	}{
		"Always": {transporttest.NewSSE, Config{Always: true}},
		"Auto":   {transporttest.NewSSE, Config{}},
		"Newer":  {transporttest.NewHTTP, Config{}},
	} {
		t.Run(name, func(t *testing.T) {
			transporttest.Suite(t, func(t *testing.T) *transporttest.Peer {
				s := c.server()
				web := httptest.NewServer(s)
				s.Die = web.CloseClientConnections
				t.Cleanup(func() {
					s.Forget()
					web.CloseClientConnections()
					web.Close()
				})
				return &transporttest.Peer{Transport: newClient(t, web.URL+"/", c.config), Dead: s.Dead}
			})
		})
	}
}
