package modern

import (
	"encoding/json"
	"testing"

	"taskgate/gateway/upstream"
	"taskgate/internal/mcp"
)

// TestServersThatKeepState: a server is known by its name, however that is capitalized, and only in the legacy era.
func TestServersThatKeepState(t *testing.T) {
	for info, want := range map[string]bool{
		`{"name":"Playwright","version":"1"}`: true, `{"name":"secure-filesystem-server"}`: true, `{"name":"example-servers/puppeteer"}`: true,
		`{"name":"chrome_devtools"}`: true, `{"name":"Desktop-Commander"}`: true, `{"name":"playwright-like"}`: false, `{}`: false, ``: false,
	} {
		for era, may := range map[mcp.Era]bool{mcp.Legacy: true, mcp.Modern: false} {
			if got := keepsState(upstream.Description{Era: era, Info: json.RawMessage(info)}); got != (want && may) {
				t.Errorf("%s, %v: %t", info, era, got)
			}
		}
	}
}
