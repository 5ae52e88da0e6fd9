package translate

import (
	"bytes"
	"encoding/json"
	"slices"
	"testing"

	"taskgate/gateway/upstream"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
)

// FuzzCapabilities: whatever a client or a server says of itself, what the other side is told
// is an object that has every member but the exceptions, byte for byte and in order, and
// telling it on once more changes nothing.
func FuzzCapabilities(f *testing.F) {
	for _, seed := range []string{
		`{}`, `[]`, `{"tasks":{"list":{}},"experimental":{"x":{"n":1.0}},"new":[1e2]}`,
		`{"extensions":{"a/b":{},"io.modelcontextprotocol/tasks":{}},"roots":{"listChanged":true}}`,
		`{"elicitation":{"form":{},"url":true},"sampling":null,"extensions":7}`,
		`{ "tools" : {"listChanged":true} , "\u0074asks":{}, "logging":{} }`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, caps []byte) {
		message := append(append([]byte(`{"jsonrpc":"2.0","method":"m","params":{"c":`), caps...), `}}`...)
		if _, err := jsonrpc.Parse(message); err != nil {
			return // it never comes so far
		}
		caps, _ = jsonrpc.Get(message, "params", "c")
		for _, v := range []ClientView{{}, {Asked: true}, {RootsChange: true}, {Asked: true, RootsChange: true}} {
			out := ClientCapabilities(caps, v)
			if jsonrpc.IsObject(caps) {
				told(t, caps, out, "tasks", "extensions", "elicitation", "sampling", "roots")
			}
			if again := ClientCapabilities(out, v); !bytes.Equal(again, out) {
				t.Errorf("%+v: %s, and once more %s", v, out, again)
			}
			for _, name := range []string{"elicitation", "sampling", "roots"} {
				if value, ok := jsonrpc.Get(out, name); ok && (!v.Asked || !jsonrpc.IsObject(value)) {
					t.Errorf("%+v: the server takes %s for a yes", v, out)
				}
			}
		}
		s := upstream.Description{Capabilities: caps}
		legacy, modern := legacyCapabilities(s, nil), modernCapabilities(s, false)
		if !bytes.Equal(legacy, modern) {
			t.Errorf("a legacy client is told %s, a modern one %s", legacy, modern)
		}
		if !jsonrpc.IsObject(caps) {
			caps = []byte(`{}`)
		}
		told(t, caps, legacy, "tasks", "extensions")
		if v, _ := jsonrpc.Get(legacyCapabilities(s, json.RawMessage(`{"list":{}}`)), "tasks"); string(v) != `{"list":{}}` {
			t.Errorf("with %s, a legacy client is told of tasks %s", caps, v)
		}
		both := modernCapabilities(s, true)
		for _, own := range []string{mcp.ExtensionTasks, mcp.ExtensionPartials} {
			if v, _ := jsonrpc.Get(both, "extensions", own); string(v) != `{}` {
				t.Errorf("with %s, a modern client is told of %s: %s", caps, own, v)
			}
		}
	})
}

// told fails the test unless out has all that caps has, but for these members.
func told(t *testing.T, caps, out []byte, except ...string) {
	t.Helper()
	if out != nil {
		if _, err := jsonrpc.Parse(append(append([]byte(`{"jsonrpc":"2.0","method":"m","params":`), out...), '}')); err != nil {
			t.Fatalf("%s becomes %s: %v", caps, out, err)
		}
	}
	rest := func(obj []byte) (all []string) {
		for name, value := range jsonrpc.Members(obj) {
			if !slices.Contains(except, name) {
				all = append(all, name+" "+string(value))
			}
		}
		return all
	}
	if before, after := rest(caps), rest(out); !slices.Equal(before, after) {
		t.Errorf("%s becomes %s", caps, out)
	}
	if _, ok := jsonrpc.Get(out, "tasks"); ok {
		t.Errorf("%s becomes %s, which has the tasks of another connection", caps, out)
	}
	for _, own := range ownExtensions {
		if _, ok := jsonrpc.Get(out, "extensions", own); ok {
			t.Errorf("%s becomes %s, which has an extension of another connection", caps, out)
		}
	}
}
