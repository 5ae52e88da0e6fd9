package upstream

import (
	"encoding/json"
	"net/http"
	"slices"
	"sync/atomic"

	"taskgate/gateway/upstream/transport"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
)

// verdict is what is known of the eras that a server speaks.
type verdict struct {
	// era is the one that server/discover has shown; NoEra until then.
	era     mcp.Era
	version string // modern: the version to speak
	mute    bool   // modern: recognised by an error, so its description is missing
	again   bool   // modern: the server has refused the version, and lists it all the same
	// shaken says that a legacy handshake has succeeded under this verdict. If one fails later,
	// the server has become another.
	shaken atomic.Bool
}

func legacyVerdict() *verdict { return &verdict{era: mcp.Legacy} }

// ofOlder are the statuses with which an older server receives an unknown first message, outside of any session.
var ofOlder = []int{
	http.StatusBadRequest, http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusNotAcceptable, http.StatusConflict, http.StatusGone,
	http.StatusPreconditionFailed, http.StatusUnsupportedMediaType, http.StatusUnprocessableEntity, http.StatusPreconditionRequired,
}

// judgeVerdict reads a verdict from the answer to a discover in the version of v. A modern
// verdict with another version asks for another discover in that.
func judgeVerdict(v *verdict, m jsonrpc.Message, err error) (*verdict, error) {
	rpc := m.Error
	if err != nil {
		se, ok := err.(*transport.StatusError)
		if !ok {
			return nil, publicError(err) // no answer, no verdict
		}
		rpc = se.Answer()
		switch s := se.Status; {
		case rpc != nil && (s < 500 || rpc.Code == mcp.CodeMethodNotFound): // an answer like any other
		case rpc == nil && (s/100 == 2 || slices.Contains(ofOlder, s)):
			return legacyVerdict(), nil
		default:
			// Authorization, overload, failure, redirects and any status that nobody has thought of leave the era
			// open: a server that was taken for an older one would lose what only the modern era has.
			return nil, se.UpstreamError()
		}
	}
	if rpc != nil {
		return judgeError(v, rpc)
	}
	// A result that lists no modern version of ours comes from a server that serves us with
	// sessions only (go-sdk 1.8.0 behind a stateful handler says so).
	supported := supportedVersions(m.Result)
	switch {
	case supported == nil:
		return legacyVerdict(), nil // not a DiscoverResult
	case !slices.Contains(supported, v.version):
		return chooseVersion(v, supported)
	}
	return v, nil
}

// judgeError reads a JSON-RPC error. -32601 is legacy whatever the status: a modern server has to
// implement discover. Others use the code of the drafts, too (X15), so it counts only with the list of versions
// that belongs to it.
func judgeError(v *verdict, rpc *jsonrpc.Error) (*verdict, error) {
	switch rpc.Code {
	case mcp.CodeUnsupportedVersion, mcp.CodeDraftUnsupportedVersion:
		supported := supportedVersions(rpc.Data)
		if rpc.Code == mcp.CodeDraftUnsupportedVersion && supported == nil {
			return legacyVerdict(), nil
		}
		return chooseVersion(v, supported)
	case mcp.CodeHeaderMismatch, mcp.CodeMissingCapability:
		return &verdict{era: mcp.Modern, version: v.version, mute: true}, nil
	}
	return legacyVerdict(), nil
}

// chooseVersion picks a version from the server's list. If that has only a legacy one of ours,
// the server keeps that era beside its own.
func chooseVersion(v *verdict, supported []string) (*verdict, error) {
	if slices.Contains(supported, v.version) && !v.again { // it had yet to start, or a replica of another version has answered
		return &verdict{era: mcp.Modern, version: v.version, again: true}, nil
	}
	for _, name := range mcp.NamesOf(mcp.Modern) {
		if slices.Contains(supported, name) && name != v.version {
			return &verdict{era: mcp.Modern, version: name}, nil
		}
	}
	for _, name := range supported {
		if mcp.EraOf(name) == mcp.Legacy {
			return legacyVerdict(), nil
		}
	}
	return nil, protocolError("the server and the gateway have no protocol version in common", nil)
}

// supportedVersions reads the list from a DiscoverResult (supportedVersions) or the data of
// -32022 (supported); nil if it is missing.
func supportedVersions(obj json.RawMessage) []string {
	for _, name := range []string{"supportedVersions", "supported"} {
		list, ok := jsonrpc.Get(obj, name)
		var names []string
		if ok && json.Unmarshal(list, &names) == nil && names != nil {
			return names
		}
	}
	return nil
}

// contradictsLegacy reports whether only a modern server gives this answer to a legacy message: a
// refusal, or the error of a handshake, in which no tool runs. A version error counts only with
// the list that belongs to it.
func contradictsLegacy(err error) bool {
	if se, ok := err.(*transport.StatusError); ok && !se.IsRefusal() {
		return false
	}
	rpc := rpcOf(err)
	switch {
	case rpc == nil:
		return false
	case rpc.Code == mcp.CodeUnsupportedVersion || rpc.Code == mcp.CodeDraftUnsupportedVersion:
		return supportedVersions(rpc.Data) != nil
	}
	return rpc.Code == mcp.CodeHeaderMismatch
}

// rpcOf finds the JSON-RPC error in an error; nil for any other error.
func rpcOf(err error) *jsonrpc.Error {
	if se, ok := err.(*transport.StatusError); ok {
		return se.RPC
	}
	rpc, _ := err.(*jsonrpc.Error)
	return rpc
}
