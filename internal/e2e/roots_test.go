package e2e

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"taskgate/internal/mcp"
	"taskgate/internal/redistest"
)

// serveRoots is a server over stdio that asks for the roots of its client once it hears that the client is ready, as
// server-filesystem does. It has a tool that tells what it knows of them. It takes one message after the other.
func serveRoots() error {
	known := "no roots"
	answer := func(id json.RawMessage, result string) {
		fmt.Printf(`{"jsonrpc":"2.0","id":%s,"result":%s}`+"\n", id, result)
	}
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		var m struct {
			ID     json.RawMessage
			Method string
			Result struct{ Roots []sdk.Root }
		}
		if err := json.Unmarshal(lines.Bytes(), &m); err != nil {
			return err
		}
		switch m.Method {
		case mcp.MethodInitialize:
			answer(m.ID, `{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"roots","version":"1"}}`)
		case mcp.NotifyInitialized:
			fmt.Println(`{"jsonrpc":"2.0","id":"roots","method":"roots/list"}`)
		case "":
			known = ""
			for _, root := range m.Result.Roots {
				known += root.URI
			}
		case mcp.MethodToolsList:
			answer(m.ID, `{"tools":[{"name":"roots","inputSchema":{"type":"object"}}]}`)
		case mcp.MethodToolsCall:
			answer(m.ID, fmt.Sprintf(`{"content":[{"type":"text","text":%q}]}`, known))
		}
	}
	return nil
}

// switched sends the POSTs of a client to the replica that is chosen, and all else to the first.
type switched struct {
	first string
	posts atomic.Pointer[gateway]
}

func (s *switched) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	if r.URL.Host = s.first; r.Method == http.MethodPost {
		r.URL.Host = s.posts.Load().addr
	}
	return http.DefaultTransport.RoundTrip(r)
}

// TestRootsAtEachReplica: each replica has a process of a server over stdio for the session of a client. Each is told the
// roots of the client before the first call at that replica, wherever the client listens.
func TestRootsAtEachReplica(t *testing.T) {
	t.Parallel()
	config := configured(t, fmt.Sprintf(`
store: %s
upstreams: [{name: roots, path: /mcp, command: %q, env: {%s: roots, GORACE: atexit_sleep_ms=0}}]
`, redistest.Start(t).URL(), os.Args[0], childVar))
	a, b := startGateway(t, config...), startGateway(t, config...)
	client := sdk.NewClient(&sdk.Implementation{Name: "rooted", Version: "1"}, &sdk.ClientOptions{Capabilities: &sdk.ClientCapabilities{RootsV2: &sdk.RootCapabilities{}}})
	client.AddRoots(&sdk.Root{URI: "file:///work"})
	at, err := url.Parse(a.url)
	if err != nil {
		t.Fatal(err)
	}
	way := &switched{first: at.Host}
	way.posts.Store(a)
	session, err := client.Connect(t.Context(), &sdk.StreamableClientTransport{Endpoint: a.url, HTTPClient: &http.Client{Transport: way}}, &sdk.ClientSessionOptions{ProtocolVersion: "2025-11-25"})
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close()
	roots := func() string {
		result, err := session.CallTool(t.Context(), &sdk.CallToolParams{Name: "roots", Arguments: map[string]any{}})
		if err != nil || len(result.Content) != 1 {
			t.Fatalf("%+v, %v", result, err)
		}
		return result.Content[0].(*sdk.TextContent).Text
	}
	eventually(t, "the first process knows the roots", func() error {
		if got := roots(); !strings.Contains(got, "file:///work") {
			return fmt.Errorf("it knows %q", got)
		}
		return nil
	})
	way.posts.Store(b)
	if got := roots(); got != "file:///work" {
		t.Errorf("the first call at the other replica finds %q", got)
	}
}
