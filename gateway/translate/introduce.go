package translate

import (
	"encoding/json"

	"taskgate/gateway/upstream"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
)

// SupportedVersions are the versions of server/discover and of -32022 (design.md 0.1): those that a
// client may speak here, in either era, down to 2025-03-26: a client that asks for versions has no older one.
var SupportedVersions = func() []string {
	var names []string
	for _, v := range mcp.Versions {
		if v.Name == mcp.Version20241105 {
			break
		}
		names = append(names, v.Name)
	}
	return names
}()

// DiscoverResult is what an upstream says of itself, with the versions that the gateway speaks in
// its place and the extensions that it adds. For a legacy upstream it is made of the
// InitializeResult.
func DiscoverResult(s upstream.Description, tasks bool) json.RawMessage {
	versions := jsonrpc.AppendStrings(nil, SupportedVersions)
	caps := modernCapabilities(s, tasks)
	if s.Era == mcp.Modern && jsonrpc.IsObject(s.Raw) {
		return jsonrpc.With(jsonrpc.With(s.Raw, versions, "supportedVersions"), caps, "capabilities")
	}
	b := append([]byte(`{"resultType":"complete","supportedVersions":`), versions...)
	b = append(append(b, `,"capabilities":`...), caps...)
	if s.Instructions != "" {
		b = append(b, `,"instructions":`...)
		b = jsonrpc.AppendString(b, s.Instructions)
	}
	return append(b, '}')
}

// InitializeResult introduces the upstream to a legacy client: with the words of a legacy upstream,
// or with those of a modern one's discovery (protocol.md 7.1). tasks is the gateway's own
// capability, nil for none.
func InitializeResult(version string, s upstream.Description, own, tasks json.RawMessage) json.RawMessage {
	modern := s.Era == mcp.Modern
	result := json.RawMessage(`{}`)
	if !modern && jsonrpc.IsObject(s.Raw) {
		result = s.Raw
	}
	result = jsonrpc.With(result, jsonrpc.AppendString(nil, version), "protocolVersion")
	result = jsonrpc.With(result, legacyCapabilities(s, tasks), "capabilities")
	if jsonrpc.IsObject(s.Info) {
		own = s.Info
	}
	result = jsonrpc.WithDefault(result, own, "serverInfo")
	if text, ok := jsonrpc.Get(s.Raw, "instructions"); ok {
		result = jsonrpc.WithDefault(result, text, "instructions")
	}
	return result
}
