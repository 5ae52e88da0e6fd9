package modern

import (
	"context"
	"net/http"
	"strings"

	"taskgate/gateway/translate"
	"taskgate/gateway/upstream"
	"taskgate/gateway/wire"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
)

// statefulServers are the legacy servers that are known to keep state for each client, by serverInfo.name. In the modern
// era all clients of one user share a session: two agents would act on each other's page. So server/discover is unknown
// for these servers under eras: auto, and clients that can fall back have a session each, as directly. Which server is
// meant, and what it keeps:
var statefulServers = map[string]string{
	"playwright":                 "a browser (microsoft/playwright-mcp)",
	"chrome_devtools":            "a browser (ChromeDevTools/chrome-devtools-mcp)",
	"example-servers/puppeteer":  "a browser (modelcontextprotocol/servers-archived, src/puppeteer)",
	"puppeteer":                  "a browser (forks of the one above)",
	"desktop-commander":          "shells and their output (wonderwhy-er/DesktopCommanderMCP)",
	"secure-filesystem-server":   "the client's roots, which it asks for once (modelcontextprotocol/servers, src/filesystem)",
	"sequential-thinking-server": "a line of thought (modelcontextprotocol/servers, src/sequentialthinking)",
}

// keepsState reports whether a server is known to keep state for each client.
func keepsState(s upstream.Description) bool {
	name, _ := jsonrpc.GetString(s.Info, "name")
	_, known := statefulServers[strings.ToLower(name)]
	return known && s.Era == mcp.Legacy
}

// saysState logs, once, what clients of this server miss.
func (h *Handler) saysState(s upstream.Description) {
	name, _ := jsonrpc.GetString(s.Info, "name")
	h.stateSaid.Do(func() {
		h.Log.Info("this server keeps state for each client, so clients that can do so fall back to 2025-11-25, where each has a session of its own; slow calls have no tasks of the extension then (eras: both changes that)", "server", name)
	})
}

// answerDiscover answers server/discover (protocol.md 2.3, 7.1).
func (q *request) answerDiscover(ctx context.Context) (jsonrpc.Spliced, error) {
	server, err := q.describeUpstream(ctx)
	if err != nil {
		return nil, err
	}
	if q.h.Config.Eras == nil && keepsState(server) {
		q.h.saysState(server)
		return nil, &wire.Failure{Code: mcp.CodeMethodNotFound, Status: http.StatusNotFound, Message: "this server keeps state for each client, and is offered by initialize (eras)"}
	}
	result := translate.DiscoverResult(q.h.Offered(server), q.isConvertible())
	return translate.ModernResult(mcp.MethodDiscover, mcp.Modern, q.h.WithInstructions(q.describeCaller(), result), q.h.Identity())
}
