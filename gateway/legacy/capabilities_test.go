package legacy_test

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strings"
	"testing"

	"taskgate/gateway/upstream"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/internal/wiretest"
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
			for n := range 4 { // each declares something else: nothing is remembered from another one
				client, toServer := declare(n, "elicitation", "sampling", "roots")
				declared, toClient := declare(n, "tools", "prompts", "resources", "completions", "logging")
				server.Capabilities(declared)
				if roots, ok := toServer["roots"]; ok && c.modernClient && !c.modernServer { // that era has no notification of it
					toServer["roots"] = string(jsonrpc.Without([]byte(roots), "listChanged"))
				}
				peer := &declaringClient{rawClient: newRawClient(t, url), capabilities: client}
				said := peer.introduce(c.modernClient)
				if got := gatewayLess(said); !maps.Equal(got, toClient) {
					t.Errorf("the server declared\n%s\nthe client reads\n%s", declared, said)
				}
				method, path := mcp.MethodInitialize, []string{"capabilities"}
				if c.modernServer {
					method, path = foreign, []string{"_meta", mcp.MetaClientCapabilities}
				}
				seen := server.Seen(method)
				if len(seen) == 0 {
					t.Fatal("the server was told nothing")
				}
				heard, _ := jsonrpc.Get(seen[len(seen)-1].Params, path...)
				got := members(heard)
				if c.modernServer { // which is told that the gateway takes tasks
					got = gatewayLess(heard)
				}
				if !maps.Equal(got, toServer) {
					t.Errorf("the client declared\n%s\nthe server reads\n%s", client, heard)
				}
			}
		})
	}
}

// declare spells capabilities with some of the known kinds among others, as another writer would not, and says what of
// them has to come out: the members with their text.
func declare(n int, known ...string) (declared string, through map[string]string) {
	const odd = `{ "in" :[ 1.0 ,9007199254740993, -0],"\u0062":"\u003c<\/" ,"":{"a":1E2,"é\ud83d\ude00":null , "c":""}}`
	text := fmt.Sprintf(` "unique":%d`, n)
	for i, name := range known {
		if n == 3 || i%2 == n%2 {
			text += fmt.Sprintf(" ,\n%q: {\"listChanged\":true,\"form\":%s, \"url\":{},\"later\":%s }", name, odd, odd)
		}
	}
	if n > 0 {
		text += `,"experimental":{"a":` + odd + `},"é<":` + odd + `, "z": [ true,null ]`
	}
	const extensions = `"io.modelcontextprotocol/ui":{"mimeTypes":["text/html;profile=mcp-app"]},"com.example/x":` + odd + `}`
	return `{"tasks":{"list":{}},"extensions":{"io.modelcontextprotocol/tasks":{"x":[1]},` + extensions + `,` + text + `}`,
		members([]byte(`{"extensions":{` + extensions + `,` + text + `}`))
}

// declaringClient is a client of either era with these capabilities.
type declaringClient struct {
	*rawClient
	capabilities string
}

// introduce makes the client and the server known to each other, and returns the server's
// capabilities as the client reads them.
func (c *declaringClient) introduce(modern bool) json.RawMessage {
	if modern {
		said, _ := jsonrpc.Get(c.ask(mcp.MethodDiscover), "result", "capabilities")
		c.ask(foreign)
		return said
	}
	_, body := c.post(`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":` + c.capabilities + `}}`)
	if _, answer := c.post(`{"jsonrpc":"2.0","id":1,"method":"` + foreign + `"}`); !strings.Contains(answer, `"result"`) {
		c.t.Fatalf("%s", answer)
	}
	said, _ := jsonrpc.Get([]byte(body), "result", "capabilities")
	c.endSession()
	return said
}

// ask sends a request of the modern era, and returns the response.
func (c *declaringClient) ask(method string) json.RawMessage {
	body := `{"jsonrpc":"2.0","id":1,"method":"` + method + `","params":{"_meta":{"` + mcp.MetaProtocolVersion + `":"2026-07-28","` +
		mcp.MetaClientCapabilities + `":` + c.capabilities + `}}}`
	resp := wiretest.Must(c.do(c.t.Context(), http.MethodPost, body, mcp.HeaderProtocolVersion, mcp.Version20260728, mcp.HeaderMethod, method))(c.t)
	defer resp.Body.Close()
	answer := wiretest.Must(io.ReadAll(resp.Body))(c.t)
	if _, ok := jsonrpc.Get(answer, "result"); !ok {
		c.t.Fatalf("%s: %s", method, answer)
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

// TestReplicasDeclare: the session with the server declares what its client did, whichever
// replica opens it.
func TestReplicasDeclare(t *testing.T) {
	stack := newLegacyReplicas(t, nil)
	a, b := stack.beginBoth(t, `"extensions":{"com.example/x":{"n":7}}`)
	for i, c := range []*rawClient{a, b} {
		c.wantPost(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo"}}`, http.StatusOK, `echo `)
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

// What a session keeps of its client is bounded. An icon goes to the server once, and is not kept.
func TestLargeIntroductions(t *testing.T) {
	server := fake.New(t, fake.Stateful)
	c := newRawClient(t, startAlone(t, upstream.Config{URL: server.URL}, nil).url)
	initialize := func(padding int, info string) string {
		return fmt.Sprintf(`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{"x":"%s"},"clientInfo":%s}}`,
			strings.Repeat("x", padding-len(`{"x":""}`)), info)
	}
	const brief = `{"name":"n","title":"t","version":"1"}`
	icon := `{"name":"n","icons":[{"src":"data:` + strings.Repeat("x", 100<<10) + `"}],"title":"t","version":"1"}`
	c.wantPost(initialize(16<<10, icon), 200, `"result"`)
	c.wantPost(initialize(16<<10+1, brief), 200, "-32602", "capabilities has more than 16384 bytes")
	c.wantPost(initialize(16, `{"name":"`+strings.Repeat("n", 4<<10)+`","version":"1"}`), 200, "-32602", "clientInfo")
	heard, _ := jsonrpc.Get(server.Seen(mcp.MethodInitialize)[0].Params, "clientInfo")
	if string(heard) != icon {
		t.Errorf("the server heard %.100s", heard)
	}
	if kept := upstream.BriefInfo(heard); string(kept) != brief {
		t.Errorf("kept: %s", kept)
	}
}
