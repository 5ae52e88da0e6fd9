package gateway

import (
	"context"
	"encoding/json"

	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
)

// discover answers server/discover (protocol.md 2.3, 7.1).
func (e *endpoint) discover(ctx context.Context, q *modernRequest, _ *exchange) (json.RawMessage, error) {
	server, err := e.describe(ctx, q)
	if err != nil {
		return nil, err
	}
	return modernResult(mcp.MethodDiscover, mcp.Modern, discoverResult(server, e.convertible(), e.offersPartials()), *e.identity.Load())
}

// discoverResult is what an upstream says of itself, with the versions that the
// gateway speaks in its place and the extensions that it adds. For a legacy
// upstream it is made of the InitializeResult.
func discoverResult(s Server, tasks, partials bool) json.RawMessage {
	versions := appendStrings(nil, supportedVersions)
	caps := modernCapabilities(s.Capabilities, s.Era, tasks, partials)
	if s.Era == mcp.Modern && jsonrpc.IsObject(s.Raw) {
		return with(with(s.Raw, versions, "supportedVersions"), caps, "capabilities")
	}
	b := append([]byte(`{"resultType":"complete","supportedVersions":`), versions...)
	b = append(append(b, `,"capabilities":`...), caps...)
	if s.Instructions != "" {
		b = append(b, `,"instructions":`...)
		b = jsonrpc.AppendString(b, s.Instructions)
	}
	return append(b, '}')
}

// modernCapabilities are an upstream's capabilities as modern clients may see
// them: never the legacy tasks (T10), and the extension where the gateway makes
// tasks, with the value {} and no other (T1; clients take anything else for no
// tasks, Appendix C.1). An upstream that has the extension itself does not show
// through. The same holds for partial results, which are an extension of the
// gateway's own. Other extensions work through results, and only modern servers
// have them.
func modernCapabilities(caps json.RawMessage, upstream mcp.Era, tasks, partials bool) json.RawMessage {
	if !jsonrpc.IsObject(caps) {
		caps = json.RawMessage(`{}`)
	}
	caps = without(caps, "tasks")
	if upstream == mcp.Modern {
		caps = without(caps, "extensions", mcp.ExtensionTasks)
		caps = without(caps, "extensions", mcp.ExtensionPartials)
	} else {
		caps = without(caps, "extensions")
	}
	if tasks {
		caps = with(caps, json.RawMessage(`{}`), "extensions", mcp.ExtensionTasks)
	}
	if partials {
		caps = with(caps, json.RawMessage(`{}`), "extensions", mcp.ExtensionPartials)
	}
	return caps
}
