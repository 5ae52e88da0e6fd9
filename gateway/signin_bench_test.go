package gateway

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"

	"taskgate/gateway/config"
	"taskgate/internal/mcp"
	"taskgate/internal/wiretest"
)

// BenchmarkSignIn compares ways to sign in by whole requests on 16 connections: what a token
// costs beside a key. The server behind the gateway is in memory, so that what it costs with a
// server is less.
func BenchmarkSignIn(b *testing.B) {
	issuer := wiretest.NewIssuer(b, "")
	for _, way := range []struct {
		name   string
		token  string
		signIn func(c *config.Config)
	}{
		{"keys", wiretest.AliceKey, wiretest.WithKeys},
		{"jwt", issuer.Token("alice", nil), func(c *config.Config) { wiretest.WithTokens(c, issuer) }},
	} {
		b.Run(way.name, func(b *testing.B) {
			g := benchGateway(b, way.signIn)
			ctx, stop := context.WithCancel(b.Context())
			ended := make(chan error, 1)
			go func() { ended <- g.Run(ctx) }()
			front := httptest.NewServer(g.Handler())
			b.Cleanup(func() {
				front.Close()
				stop()
				<-ended
			})
			client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 16}}
			defer client.CloseIdleConnections()
			body := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"greet","arguments":{},"_meta":{` + wiretest.Macros.Replace("$META") + `}}}`
			b.SetParallelism(max(1, 16/runtime.GOMAXPROCS(0)))
			b.ResetTimer()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					r, err := http.NewRequest(http.MethodPost, front.URL+"/mcp", strings.NewReader(body))
					if err != nil {
						b.Error(err)
						return
					}
					for name, value := range map[string]string{"Content-Type": mcp.TypeJSON, "Accept": mcp.TypeAccept, "Authorization": "Bearer " + way.token,
						mcp.HeaderProtocolVersion: mcp.Version20260728, mcp.HeaderMethod: "tools/call", mcp.HeaderName: "greet"} {
						r.Header.Set(name, value)
					}
					resp, err := client.Do(r)
					if err != nil {
						b.Error(err)
						return
					}
					_, _ = io.Copy(io.Discard, resp.Body)
					_ = resp.Body.Close()
					if resp.StatusCode != http.StatusOK {
						b.Error(resp.Status)
						return
					}
				}
			})
		})
	}
}
