package e2e

import (
	"context"
	"encoding/json"
	"testing"

	mcpgoclient "github.com/mark3labs/mcp-go/client"
	"github.com/mark3labs/mcp-go/client/transport"
	mcpgo "github.com/mark3labs/mcp-go/mcp"

	"taskgate/internal/mcp"
)

// namer answers every question.
type namer struct{}

func (namer) Elicit(context.Context, mcpgo.ElicitationRequest) (*mcpgo.ElicitationResult, error) {
	return &mcpgo.ElicitationResult{ElicitationResponse: mcpgo.ElicitationResponse{
		Action: mcpgo.ElicitationResponseActionAccept, Content: map[string]any{"name": "Ada"},
	}}, nil
}

// connectMCPGo is a client of mcp-go that can be asked, in a version, or without one in the newest that it is
// offered. It returns which that is.
func connectMCPGo(t *testing.T, road transport.Interface, version string) (*mcpgoclient.Client, string) {
	t.Helper()
	options := []mcpgoclient.ClientOption{mcpgoclient.WithElicitationHandler(namer{})}
	if version != "" {
		options = append(options, mcpgoclient.WithProtocolVersion(version))
	}
	c := mcpgoclient.NewClient(road, options...)
	if err := c.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	init := mcpgo.InitializeRequest{}
	init.Params.ProtocolVersion = version
	init.Params.ClientInfo = mcpgo.Implementation{Name: "e2e", Version: "1"}
	begun, err := c.Initialize(t.Context(), init)
	if err != nil || version != "" && begun.ProtocolVersion != version {
		t.Fatalf("initialize: %+v, %v", begun, err)
	}
	return c, begun.ProtocolVersion
}

// roadOfMCPGo is the way of such a client to an endpoint.
func roadOfMCPGo(t *testing.T, url, version string) transport.Interface {
	t.Helper()
	var options []transport.StreamableHTTPCOption
	if version == mcp.Version20251125 { // mcp-go asks there, and knows no GET stream in the other era
		options = append(options, transport.WithContinuousListening())
	}
	road, err := transport.NewStreamableHTTP(url, options...)
	if err != nil {
		t.Fatal(err)
	}
	return road
}

func callMCPGo(t *testing.T, c *mcpgoclient.Client, tool string, args map[string]any) string {
	t.Helper()
	call := mcpgo.CallToolRequest{}
	call.Params.Name, call.Params.Arguments = tool, args
	result, err := c.CallTool(t.Context(), call)
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(result.Content)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
