package modern

import (
	"context"

	"taskgate/gateway/translate"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
)

// discover answers server/discover (protocol.md 2.3, 7.1).
func (q *request) discover(ctx context.Context) (jsonrpc.Spliced, error) {
	server, err := q.describe(ctx)
	if err != nil {
		return nil, err
	}
	result := translate.DiscoverResult(server, q.convertible(), q.convertible() && q.h.OffersPartials())
	return translate.ModernResult(mcp.MethodDiscover, mcp.Modern, q.h.WithInstructions(q.caller(), result), q.h.Identity())
}
