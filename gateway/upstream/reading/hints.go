package reading

import (
	"encoding/json"

	"taskgate/internal/jsonrpc"
	"taskgate/shim"
)

// HintsOf is what an entry of a server's tools list says in its annotations.
func HintsOf(tool json.RawMessage) shim.Hints {
	is := func(hint, value string) bool {
		said, _ := jsonrpc.Get(tool, "annotations", hint)
		return string(said) == value
	}
	reads := is("readOnlyHint", "true")
	return shim.Hints{
		ReadOnly: reads, Additive: reads || is("destructiveHint", "false"), Idempotent: reads || is("idempotentHint", "true"),
		Closed: is("openWorldHint", "false"),
	}
}
