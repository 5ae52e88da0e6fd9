package modern

import (
	"context"

	"taskgate/gateway/translate"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
)

// answerDiscover answers server/discover (protocol.md 2.3, 7.1).
func (q *request) answerDiscover(ctx context.Context) (jsonrpc.Spliced, error) {
	server, err := q.describeUpstream(ctx)
	if err != nil {
		return nil, err
	}
	result := translate.DiscoverResult(server, q.isConvertible())
	return translate.ModernResult(mcp.MethodDiscover, mcp.Modern, q.h.WithInstructions(q.describeCaller(), result), q.h.Identity())
}
