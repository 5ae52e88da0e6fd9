package translate

import (
	"testing"

	"taskgate/gateway/upstream"
)

// The exceptions: all else of capabilities goes through byte for byte, as
// TestCapabilitiesGoThrough in gateway/legacy shows for every pairing.
func TestClientCapabilities(t *testing.T) {
	all := ClientView{Asked: true, RootsChange: true}
	const ui = `{"io.modelcontextprotocol/ui":{"mimeTypes":["text/html;profile=mcp-app"]}}`
	for _, c := range []struct {
		in   string
		view ClientView
		want string
	}{
		{`{"roots":{"listChanged":true}, "extensions":` + ui + `,"experimental":{"x":{"n":1.0}},"new":[1e2]}`, all,
			`{"roots":{"listChanged":true}, "extensions":` + ui + `,"experimental":{"x":{"n":1.0}},"new":[1e2]}`},
		// What is the gateway's own.
		{`{"tasks":{"list":{}},"new":1}`, all, `{"new":1}`},
		{`{"extensions":{"a/b":{},"io.modelcontextprotocol/tasks":{},"dev.taskgate/partials":{}}}`, all, `{"extensions":{"a/b":{}}}`},
		{`{"extensions":{"io.modelcontextprotocol/tasks":{}},"new":1}`, all, `{"new":1}`},
		{`{"extensions":{"io.modelcontextprotocol/oauth-client-credentials":{},"io.modelcontextprotocol/enterprise-managed-authorization":{},"a/b":{}}}`, all, `{"extensions":{"a/b":{}}}`},
		{`{"extensions":{}}`, all, `{"extensions":{}}`},
		// Questions that nobody would bring to the client.
		{`{"elicitation":{"url":{}},"sampling":{},"roots":{},"extensions":` + ui + `}`, ClientView{}, `{"extensions":` + ui + `}`},
		{`{"roots":{"listChanged":true,"x":1},"sampling":{"tools":{"max":3}}}`, ClientView{Asked: true}, `{"roots":{"x":1},"sampling":{"tools":{"max":3}}}`},
		// What declares nothing, and must not look as if it did.
		{`{"elicitation":true,"sampling":null,"roots":[],"extensions":1,"experimental":true}`, all, `{"experimental":true}`},
		{`{"elicitation":{"form":{"applyDefaults":true},"url":true,"x":true}}`, all, `{"elicitation":{"form":{"applyDefaults":true},"x":true}}`},
		{``, all, ``}, {`{}`, all, ``}, {`{"tasks":{}}`, all, ``},
	} {
		if got := string(ClientCapabilities([]byte(c.in), c.view)); got != c.want {
			t.Errorf("%s %+v\ngot  %s\nwant %s", c.in, c.view, got, c.want)
		}
	}
}

func TestServerCapabilities(t *testing.T) {
	const ownTasks = `{"list":{},"cancel":{}}`
	for _, c := range []struct {
		in             string
		tasks          bool
		legacy, modern string
	}{
		{`{"tools":{"listChanged":true},"tasks":{}, "logging":{}}`, false,
			`{"tools":{"listChanged":true}, "logging":{}}`, `{"tools":{"listChanged":true}, "logging":{}}`},
		{`{"extensions":{"io.modelcontextprotocol/tasks":{"x":1}}}`, false, `{}`, `{}`},
		{`{"extensions":{"a/b":{"n":1.0},"io.modelcontextprotocol/tasks":{}},"experimental":{"x":{}}}`, false,
			`{"extensions":{"a/b":{"n":1.0}},"experimental":{"x":{}}}`, `{"extensions":{"a/b":{"n":1.0}},"experimental":{"x":{}}}`},
		{`{"extensions":{"io.modelcontextprotocol/oauth-client-credentials":{}},"tools":{}}`, false, `{"tools":{}}`, `{"tools":{}}`},
		{`{"extensions":{}}`, false, `{"extensions":{}}`, `{"extensions":{}}`},
		{``, false, `{}`, `{}`}, {`[]`, false, `{}`, `{}`},
		// Tasks are the gateway's own, whatever the server has (L1, T1, T10).
		{`{"tools":{},"tasks":{"cancel":{}}}`, true, `{"tools":{},"tasks":` + ownTasks + `}`,
			`{"tools":{},"extensions":{"io.modelcontextprotocol/tasks":{},"dev.taskgate/partials":{}}}`},
		{`{"extensions":{"a/b":{},"io.modelcontextprotocol/tasks":{"x":1}}}`, true, `{"extensions":{"a/b":{}},"tasks":` + ownTasks + `}`,
			`{"extensions":{"a/b":{},"io.modelcontextprotocol/tasks":{},"dev.taskgate/partials":{}}}`},
		{`{"extensions":7}`, true, `{"tasks":` + ownTasks + `}`, `{"extensions":{"io.modelcontextprotocol/tasks":{},"dev.taskgate/partials":{}}}`},
	} {
		var own []byte
		if c.tasks {
			own = []byte(ownTasks)
		}
		s := upstream.Description{Capabilities: []byte(c.in)}
		if got := string(legacyCapabilities(s, own)); got != c.legacy {
			t.Errorf("%s to a legacy client\ngot  %s\nwant %s", c.in, got, c.legacy)
		}
		if got := string(modernCapabilities(s, c.tasks)); got != c.modern {
			t.Errorf("%s to a modern client\ngot  %s\nwant %s", c.in, got, c.modern)
		}
	}
}

func TestAnswerable(t *testing.T) {
	for in, want := range map[string]string{
		`{}`: "", `{"tasks":{},"extensions":{"x":{}},"experimental":{}}`: "",
		`{"elicitation":{"url":{}},"x":1,"roots":{}}`: `{"elicitation":{"url":{}},"roots":{}}`,
		`{"sampling":true,"elicitation":null}`:        "",
	} {
		if got := string(Answerable([]byte(in))); got != want {
			t.Errorf("%s: %s, want %s", in, got, want)
		}
	}
}
