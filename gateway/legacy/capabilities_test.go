package legacy_test

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"taskgate/gateway/upstream"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/shim/shimtest/fake"
)

// foreign is a method of an extension: a server need not declare anything for it.
const foreign = "com.example/ask"

// Whatever a client or a server declares comes out on the other side byte for byte, in every
// pairing of eras, but for what design.md 0.26 lists.
func TestCapabilitiesGoThrough(t *testing.T) {
	for _, c := range []struct {
		name                       string
		modernClient, modernServer bool
	}{
		{"legacy client, legacy server", false, false}, {"legacy client, modern server", false, true},
		{"modern client, legacy server", true, false}, {"modern client, modern server", true, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			mode := fake.Stateful
			if c.modernServer {
				mode = fake.Modern
			}
			server := fake.New(t, mode)
			server.On(foreign, fake.Result(`{}`))
			url := startAlone(t, upstream.Config{URL: server.URL}, nil).url
			n := 0
			rapid.Check(t, func(rt *rapid.T) {
				n++ // each draw declares something else: nothing is remembered from another one
				unique := `"unique":` + fmt.Sprint(n)
				client, toServer := drawCapabilities(rt, unique, "elicitation", "sampling", "roots")
				declared, toClient := drawCapabilities(rt, unique, "tools", "prompts", "resources", "completions", "logging")
				server.Capabilities(declared)
				if roots, ok := toServer["roots"]; ok && c.modernClient && !c.modernServer { // that era has no notification of it
					toServer["roots"] = without(roots, "listChanged")
				}
				peer := &declaringClient{rawClient: newRawClient(t, url), capabilities: client}
				defer peer.http.CloseIdleConnections()
				said := peer.introduce(rt, c.modernClient)
				if got := gatewayLess(said); !maps.Equal(got, toClient) {
					rt.Fatalf("the server declared\n%s\nthe client reads\n%s", declared, said)
				}
				method, path := mcp.MethodInitialize, []string{"capabilities"}
				if c.modernServer {
					method, path = foreign, []string{"_meta", mcp.MetaClientCapabilities}
				}
				seen := server.Seen(method)
				if len(seen) == 0 {
					rt.Fatal("the server was told nothing")
				}
				heard, _ := jsonrpc.Get(seen[len(seen)-1].Params, path...)
				got := members(heard)
				if c.modernServer { // which is told that the gateway takes tasks
					got = gatewayLess(heard)
				}
				if !maps.Equal(got, toServer) {
					rt.Fatalf("the client declared\n%s\nthe server reads\n%s", client, heard)
				}
			})
		})
	}
}

// drawCapabilities draws capabilities with these known kinds among others, and says what of
// them has to come out: the members with their text.
func drawCapabilities(t *rapid.T, unique string, known ...string) (string, map[string]string) {
	blank := rapid.SampledFrom([]string{"", " ", "\n\t"})
	object := func(parts []string) string {
		return "{" + blank.Draw(t, "blank") + strings.Join(parts, blank.Draw(t, "blank")+","+blank.Draw(t, "blank")) + "}"
	}
	list := []string{unique}
	out := map[string]string{}
	name, value, _ := strings.Cut(unique, ":")
	out[strings.Trim(name, `"`)] = value
	add := func(name, value string, through bool) {
		list = append(list, string(jsonrpc.AppendString(nil, name))+":"+blank.Draw(t, "blank")+value)
		if through {
			out[name] = value
		}
	}
	names := rapid.SliceOfNDistinct(rapid.SampledFrom(known), 0, len(known), rapid.ID[string]).Draw(t, "known")
	for _, name := range names {
		inner := []string{}
		if rapid.Bool().Draw(t, "flag") {
			inner = append(inner, `"listChanged":true`)
		}
		if rapid.Bool().Draw(t, "mode") {
			inner = append(inner, `"form":`+drawObject(t), `"url":{}`)
		}
		add(name, object(append(inner, `"later":`+drawValue(t, 3))), true)
	}
	if rapid.Bool().Draw(t, "tasks") {
		add("tasks", `{"list":{}}`, false)
	}
	if rapid.Bool().Draw(t, "experimental") {
		add("experimental", object([]string{`"a":` + drawObject(t), `"b":` + drawObject(t)}), true)
	}
	if rapid.Bool().Draw(t, "extensions") {
		own := rapid.Bool().Draw(t, "own")
		value := `{"io.modelcontextprotocol/ui":{"mimeTypes":["text/html;profile=mcp-app"]},"com.example/x":` + drawObject(t) + `}`
		through := value
		if own {
			value = strings.Replace(value, `{`, `{"io.modelcontextprotocol/tasks":{"x":[1]},`, 1)
		}
		add("extensions", value, true)
		out["extensions"] = through
	}
	for i := range rapid.IntRange(0, 3).Draw(t, "others") {
		add(rapid.StringMatching(`[a-zé<]{1,6}`).Draw(t, "name")+fmt.Sprint(i), drawValue(t, 3), true)
	}
	return object(rapid.Permutation(list).Draw(t, "order")), out
}

func drawObject(t *rapid.T) string {
	return `{"in":` + drawValue(t, 2) + `, "":` + drawValue(t, 2) + `}`
}

// drawValue draws the text of a JSON value, in spellings that another writer would change.
func drawValue(t *rapid.T, depth int) string {
	const scalars = 8
	switch k := rapid.IntRange(0, scalars+2).Draw(t, "kind"); {
	case k <= scalars || depth == 0:
		return []string{`1.0`, `9007199254740993`, `-0`, `1E2`, `"\u003c<\/"`, `"é\ud83d\ude00"`, `true`, `null`, `""`}[k%(scalars+1)]
	case k == scalars+1:
		return `[ ` + drawValue(t, depth-1) + ` ,` + drawValue(t, depth-1) + `]`
	}
	return `{"a":` + drawValue(t, depth-1) + `, "\u0062" : ` + drawValue(t, depth-1) + `}`
}

// declaringClient is a client of either era with these capabilities.
type declaringClient struct {
	*rawClient
	capabilities string
}

// introduce makes the client and the server known to each other, and returns the server's
// capabilities as the client reads them.
func (c *declaringClient) introduce(t *rapid.T, modern bool) json.RawMessage {
	if modern {
		said, _ := jsonrpc.Get(c.ask(t, mcp.MethodDiscover), "result", "capabilities")
		c.ask(t, foreign)
		return said
	}
	_, body := c.post(`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":` + c.capabilities + `}}`)
	if _, answer := c.post(`{"jsonrpc":"2.0","id":1,"method":"` + foreign + `"}`); !strings.Contains(answer, `"result"`) {
		t.Fatalf("%s", answer)
	}
	said, _ := jsonrpc.Get([]byte(body), "result", "capabilities")
	c.endSession()
	return said
}

// ask sends a request of the modern era, and returns the response.
func (c *declaringClient) ask(t *rapid.T, method string) json.RawMessage {
	body := `{"jsonrpc":"2.0","id":1,"method":"` + method + `","params":{"_meta":{"` + mcp.MetaProtocolVersion + `":"2026-07-28","` +
		mcp.MetaClientCapabilities + `":` + c.capabilities + `}}}`
	resp, err := c.do(c.t.Context(), http.MethodPost, body, mcp.HeaderProtocolVersion, mcp.Version20260728, mcp.HeaderMethod, method)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := jsonrpc.Get(answer, "result"); !ok {
		t.Fatalf("%s: %s", method, answer)
	}
	return answer
}

func members(object json.RawMessage) map[string]string {
	out := map[string]string{}
	for name, value := range jsonrpc.Members(object) {
		out[name] = string(value)
	}
	return out
}

// gatewayLess are the members without what the gateway adds of its own.
func gatewayLess(capabilities json.RawMessage) map[string]string {
	out := members(capabilities)
	delete(out, "tasks")
	extensions := json.RawMessage(out["extensions"])
	own := 0
	for _, name := range []string{mcp.ExtensionTasks, mcp.ExtensionPartials} {
		if value, _ := jsonrpc.Get(extensions, name); string(value) == `{}` {
			extensions = jsonrpc.Without(extensions, name)
			own++
		}
	}
	if out["extensions"] = string(extensions); own > 0 && string(extensions) == `{}` || len(extensions) == 0 {
		delete(out, "extensions")
	}
	return out
}

func without(object, name string) string {
	return string(jsonrpc.Without(json.RawMessage(object), name))
}

// TestReplicasDeclare: the session with the server declares what its client did, whichever
// replica opens it.
func TestReplicasDeclare(t *testing.T) {
	stack := newLegacyReplicas(t, nil)
	a, b := stack.beginBoth(t, `"extensions":{"com.example/x":{"n":7}}`)
	for i, c := range []*rawClient{a, b} {
		if _, body := c.post(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo"}}`); !strings.Contains(body, `echo `) {
			t.Errorf("call: %s", body)
		}
		for ss := range stack.server.Sessions() {
			settings, _ := ss.InitializeParams().Capabilities.Extensions["com.example/x"].(map[string]any)
			if settings["n"] != 7.0 {
				t.Errorf("replica %d declared %+v", i, ss.InitializeParams().Capabilities)
			}
			if err := ss.Close(); err != nil { // the next replica opens one anew
				t.Fatal(err)
			}
		}
		waitUntil(t, "the session is lost", func() bool { return stack.sessions() == 0 })
	}
}
