package endpoint

import (
	"encoding/json"
	"strings"

	"taskgate/gateway/translate"
	"taskgate/gateway/upstream/reading"
	"taskgate/internal/jsonrpc"
)

// showJobs is a page of the server's tools in which a tool that starts a job is one that answers with the job's result:
// its description does not tell a model to poll, its output schema, which has the job's id, is left out, and so are the
// other tools of the job if the configuration hides them.
func (e *Endpoint) showJobs(result json.RawMessage) json.RawMessage {
	if !e.Config.StartsJobs() {
		return result
	}
	return translate.EachTool(result, func(tool json.RawMessage) json.RawMessage {
		name, _ := jsonrpc.GetString(tool, "name")
		if e.Config.HidesTool(name) {
			return nil
		}
		j := e.Config.JobOf(name, reading.HintsOf(tool))
		if j == nil {
			return tool
		}
		said, _ := jsonrpc.GetString(tool, "description")
		text := j.Description
		if text == "" {
			text = strings.TrimSpace(said + "\n\n" + j.Append)
		}
		tool = jsonrpc.With(tool, jsonrpc.AppendString(nil, text), "description")
		return jsonrpc.Without(tool, "outputSchema")
	})
}
