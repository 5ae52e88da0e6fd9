package modern

import (
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"taskgate/gateway/endpoint"
	"taskgate/gateway/translate"
	"taskgate/gateway/upstream"
	"taskgate/gateway/wire"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/shim"
)

// request is a request of the modern era with the content of its envelope (protocol.md 2.2). All of
// it holds for this request alone (T3).
type request struct {
	h            *Handler
	msg          jsonrpc.Message
	header       http.Header     // nil for a client over stdio
	host         string          // that the client has asked for
	meta         json.RawMessage // params._meta
	principal    shim.Principal
	version      string
	capabilities json.RawMessage // clientCapabilities
	clientInfo   json.RawMessage // nil if the client leaves it out
	logLevel     string          // "" for no log messages
	token        json.RawMessage // progressToken, nil for no progress
	tasks        bool            // the client declares the tasks extension
	name         string          // the tool, prompt or URI
	named        bool            // the body has a name; "" may be one
	hidden       endpoint.Hidden
	says         shim.Hints      // what the server says of the tool, for its policy
	arguments    json.RawMessage // of the tool or prompt; nil for none
	responses    json.RawMessage // params.inputResponses; nil for none
	state        json.RawMessage // params.requestState; nil if it is no retry

	server upstream.Description // the upstream, if the method needs one
	op     *wire.Operation      // its observation
	begun  time.Time
	x      *wire.Exchange // its answer
}

// The members of params._meta that make the envelope. They are picked in one pass: a poll is little
// more than its envelope.
const (
	metaVersion = iota
	metaCapabilities
	metaClientInfo
	metaLogLevel
	metaProgressToken
	metaMembers
)

var metaNames = [metaMembers]string{
	mcp.MetaProtocolVersion, mcp.MetaClientCapabilities, mcp.MetaClientInfo, mcp.MetaLogLevel,
	mcp.MetaProgressToken,
}

// maxCapabilities bounds the capabilities of a client and its clientInfo, in bytes: they are kept with its call
// and with sessions at servers.
const maxCapabilities = 64 << 10

// readEnvelope checks version header and envelope, in the order of protocol.md 2.5. It returns the
// request even with an error, as far as it could be read: the version decides how the error is
// spelt.
func readEnvelope(h http.Header, msg jsonrpc.Message) (*request, error) {
	q := &request{msg: msg, header: h}
	var params [5]json.RawMessage
	msg.Pick([]string{"_meta", mcp.NameParam(msg.Method), "arguments", "inputResponses", "requestState"}, params[:])
	q.meta, q.arguments, q.responses, q.state = params[0], params[2], params[3], params[4]
	q.name, q.named = jsonrpc.String(params[1])
	var meta [metaMembers]json.RawMessage
	jsonrpc.Pick(q.meta, metaNames[:], meta[:])
	version, ok := jsonrpc.String(meta[metaVersion])
	if mcp.EraOf(version) == mcp.Modern {
		q.version = version
	}
	if !ok {
		return q, badEnvelope("%s must be a string", mcp.MetaProtocolVersion)
	}
	if err := checkHeader(h, mcp.HeaderProtocolVersion, "version", version); err != nil {
		return q, err
	}
	if err := q.readMeta(&meta); err != nil {
		return q, err
	}
	if q.version == "" {
		return q, unsupportedVersion(version)
	}
	return q, nil
}

// unsupportedVersion is -32022. It lists the legacy versions as well: a client of both eras can
// fall back on one of them by initialize.
func unsupportedVersion(requested string) *wire.Failure {
	b := []byte(`{"supported":`)
	b = jsonrpc.AppendStrings(b, translate.SupportedVersions)
	b = append(b, `,"requested":`...)
	b = jsonrpc.AppendString(b, requested)
	return &wire.Failure{Code: mcp.CodeUnsupportedVersion, Message: "unsupported protocol version",
		Data: append(b, '}'), Status: http.StatusBadRequest}
}

// readMeta reads the keys of the envelope besides the version.
func (q *request) readMeta(meta *[metaMembers]json.RawMessage) error {
	q.capabilities = meta[metaCapabilities]
	switch {
	case !jsonrpc.IsObject(q.capabilities):
		return badEnvelope("%s must be an object", mcp.MetaClientCapabilities)
	case len(q.capabilities) > maxCapabilities:
		return badEnvelope("%s has more than %d bytes", mcp.MetaClientCapabilities, maxCapabilities)
	}
	if extensions, ok := jsonrpc.Get(q.capabilities, "extensions"); ok {
		if !jsonrpc.IsObject(extensions) {
			return badEnvelope("clientCapabilities.extensions must be an object")
		}
		tasks, _ := jsonrpc.Get(extensions, mcp.ExtensionTasks)
		q.tasks = jsonrpc.IsObject(tasks)
	}
	q.clientInfo = meta[metaClientInfo]
	switch {
	case q.clientInfo != nil && !isImplementation(q.clientInfo):
		return badEnvelope("%s must be an object with the strings name and version", mcp.MetaClientInfo)
	case len(q.clientInfo) > maxCapabilities:
		return badEnvelope("%s has more than %d bytes", mcp.MetaClientInfo, maxCapabilities)
	}
	if level := meta[metaLogLevel]; level != nil {
		var ok bool
		if q.logLevel, ok = jsonrpc.String(level); !ok || mcp.LogSeverity(q.logLevel) < 0 {
			return badEnvelope("%s is none of the levels of RFC 5424", mcp.MetaLogLevel)
		}
	}
	if q.token = meta[metaProgressToken]; q.token != nil {
		id, err := jsonrpc.ParseID(q.token) // the same types as an id
		switch {
		case err != nil:
			return badEnvelope("%s must be a string or an integer", mcp.MetaProgressToken)
		case id.Long():
			return badEnvelope("%s is too long", mcp.MetaProgressToken)
		}
	}
	return nil
}

// isImplementation reports whether v is a well-formed Implementation object.
func isImplementation(v json.RawMessage) bool {
	var values [2]json.RawMessage
	jsonrpc.Pick(v, []string{"name", "version"}, values[:])
	return isString(values[0]) && isString(values[1])
}

// isString reports whether a value that was picked is a string.
func isString(v json.RawMessage) bool { return len(v) > 0 && v[0] == '"' }

func badEnvelope(format string, a ...any) *wire.Failure {
	return &wire.Failure{Code: mcp.CodeInvalidParams, Message: fmt.Sprintf(format, a...), Status: http.StatusBadRequest}
}
