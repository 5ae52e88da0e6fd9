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
	"taskgate/shim"
)

// statefulServers are the legacy servers that are known to keep state for each client, by serverInfo.name. In the modern
// era all clients of one user share a session: two agents would act on each other's page. So server/discover is unknown
// for these servers under eras: auto, and clients that can fall back have a session each, as directly. Which server is
// meant, and what it keeps: the names are what the packages of npm say of themselves when they are started.
var statefulServers = map[string]string{
	"playwright":                 "a browser (@playwright/mcp 0.0.83)",
	"chrome_devtools":            "a browser (chrome-devtools-mcp 1.11.0)",
	"example-servers/puppeteer":  "a browser (@modelcontextprotocol/server-puppeteer 2025.5.12, puppeteer-mcp-server 0.7.2)",
	"hisma/server-puppeteer":     "a browser (@hisma/server-puppeteer 0.6.5)",
	"desktop-commander":          "shells and their output (@wonderwhy-er/desktop-commander 0.2.52)",
	"secure-filesystem-server":   "the client's roots, which it asks for once (@modelcontextprotocol/server-filesystem 2026.8.31)",
	"sequential-thinking-server": "a line of thought (@modelcontextprotocol/server-sequential-thinking 2026.8.31)",
}

// keepsState reports whether a server is known to keep state for each client.
func keepsState(s upstream.Description) bool {
	name, _ := jsonrpc.GetString(s.Info, "name")
	_, known := statefulServers[strings.ToLower(name)]
	return known && s.Era == mcp.Legacy
}

// offersSession reports whether a client is left to fall back to 2025-11-25, where it has a session of its own: the server
// is known to keep state for each client, and most of its calls are quick; or it asks for the client's roots outside of any
// call, and would reach nobody.
func (q *request) offersSession(ctx context.Context, server upstream.Description) bool {
	if q.h.Config.Eras != nil {
		return false
	}
	if keepsState(server) && !q.h.Shim.IsSlow(q.h.Name) {
		return true
	}
	return q.h.Upstream.AsksForRoots(ctx, q.inName(ctx, shim.Session{ClientInfo: q.clientInfo, Capabilities: q.declaredCapabilities(mcp.Legacy)}), server)
}

// saysState logs, once, what clients of this server miss.
func (h *Handler) saysState(s upstream.Description) {
	name, _ := jsonrpc.GetString(s.Info, "name")
	h.stateSaid.Do(func() {
		h.Log.Info("this server keeps state for each client, or asks for its roots, so clients that can do so fall back to 2025-11-25, where each has a session of its own; slow calls have no tasks of the extension then (eras: both changes that)", "server", name)
	})
}

// answerDiscover answers server/discover (protocol.md 2.3, 7.1).
func (q *request) answerDiscover(ctx context.Context) (jsonrpc.Spliced, error) {
	server, err := q.describeUpstream(ctx)
	if err != nil {
		return nil, err
	}
	if q.offersSession(ctx, server) {
		q.h.saysState(server)
		return nil, &wire.Failure{Code: mcp.CodeMethodNotFound, Status: http.StatusNotFound, Message: "this server keeps state for each client, and is offered by initialize (eras)"}
	}
	result := translate.DiscoverResult(q.h.Offered(server), q.isConvertible())
	return translate.ModernResult(mcp.MethodDiscover, mcp.Modern, q.h.WithInstructions(q.describeCaller(), result), q.h.Identity())
}
