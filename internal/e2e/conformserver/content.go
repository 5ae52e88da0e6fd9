package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// pixel and silence are the beginnings of files of their kinds, which nobody
// decodes.
var (
	pixel   = []byte("\x89PNG\r\n\x1a\n")
	silence = []byte("RIFF\x24\x00\x00\x00WAVE")
)

// embedded is a resource inside a result.
func embedded(uri, mime, body string) *mcp.EmbeddedResource {
	return &mcp.EmbeddedResource{Resource: &mcp.ResourceContents{URI: uri, MIMEType: mime, Text: body}}
}

func addContentTools(server *mcp.Server) {
	image := &mcp.ImageContent{Data: pixel, MIMEType: "image/png"}
	add(server, "test_simple_text", "Returns a text.", fixed(text("This is a simple text response for testing.")))
	add(server, "test_image_content", "Returns an image.", fixed(image))
	add(server, "test_audio_content", "Returns a sound.", fixed(&mcp.AudioContent{Data: silence, MIMEType: "audio/wav"}))
	add(server, "test_embedded_resource", "Returns a resource.",
		fixed(embedded("test://embedded-resource", "text/plain", "This is an embedded resource content.")))
	add(server, "test_multiple_content_types", "Returns several kinds of content.",
		fixed(text("Multiple content types test:"), image, embedded("test://mixed-content-resource", "application/json", `{"test":"data","value":123}`)))
	add(server, "test_error_handling", "Fails.", func(context.Context, *mcp.CallToolRequest, map[string]any) (*mcp.CallToolResult, any, error) {
		return nil, nil, errors.New("this tool intentionally returns an error for testing")
	})
	add(server, "test_tool_with_progress", "Reports progress.", withProgress)
}

func withProgress(ctx context.Context, req *mcp.CallToolRequest, _ map[string]any) (*mcp.CallToolResult, any, error) {
	for _, done := range []float64{0, 50, 100} {
		if token := req.Params.GetProgressToken(); token != nil {
			progress := &mcp.ProgressNotificationParams{ProgressToken: token, Progress: done, Total: 100}
			if err := req.Session.NotifyProgress(ctx, progress); err != nil {
				return nil, nil, err
			}
		}
		if err := wait(ctx, 50*time.Millisecond); err != nil {
			return nil, nil, err
		}
	}
	return &mcp.CallToolResult{Content: []mcp.Content{text("done")}}, nil, nil
}

// addDiagnosticTools adds those by which the suite looks at the protocol itself.
func addDiagnosticTools(server *mcp.Server) {
	add(server, "test_missing_capability", "Needs a client with sampling.", needsSampling)
	add(server, "test_streaming_elicitation", "Streams nothing but its result.", fixed(text("no requests on this stream")))
	add(server, "test_logging_tool", "Logs, which only clients see that ask for it.", logs)
	add(server, "test_trigger_tool_change", "Changes the list of tools.",
		func(context.Context, *mcp.CallToolRequest, map[string]any) (*mcp.CallToolResult, any, error) {
			add(server, "test_transient", "Comes when test_trigger_tool_change is called.", fixed(text("here")))
			return &mcp.CallToolResult{Content: []mcp.Content{text("changed")}}, nil, nil
		})
	add(server, "test_trigger_prompt_change", "Changes the list of prompts.",
		func(context.Context, *mcp.CallToolRequest, map[string]any) (*mcp.CallToolResult, any, error) {
			server.AddPrompt(&mcp.Prompt{Name: "test_transient", Description: "Comes when test_trigger_prompt_change is called."},
				fixedPrompt(text("here")))
			return &mcp.CallToolResult{Content: []mcp.Content{text("changed")}}, nil, nil
		})
}

// mirrored is a schema with an argument that clients repeat in a header.
const mirrored = `{"type":"object","properties":{
	"region":{"type":"string","description":"Mirrored.","x-mcp-header":"Region"},
	"level":{"type":"integer","description":"Not mirrored."}}}`

// vocabulary is a schema of words that a server or a gateway may be tempted to
// leave out.
const vocabulary = `{"$schema":"https://json-schema.org/draft/2020-12/schema","type":"object",
	"$defs":{"address":{"$anchor":"addressDef","type":"object","properties":{"street":{"type":"string"},"city":{"type":"string"}}}},
	"properties":{"name":{"type":"string"},"address":{"$ref":"#/$defs/address"},"contactMethod":{"type":"string","enum":["phone","email"]},
		"phone":{"type":"string"},"email":{"type":"string"}},
	"allOf":[{"anyOf":[{"required":["phone"]},{"required":["email"]}]}],
	"if":{"properties":{"contactMethod":{"const":"phone"}},"required":["contactMethod"]},
	"then":{"required":["phone"]},"else":{"required":["email"]},"additionalProperties":false}`

// addSchemaTools adds those whose schemas matter.
func addSchemaTools(server *mcp.Server) {
	for name, schema := range map[string]string{"test_x_mcp_header": mirrored, "json_schema_2020_12_tool": vocabulary} {
		mcp.AddTool(server, &mcp.Tool{Name: name, Description: "Has a schema to look at.", InputSchema: json.RawMessage(schema)}, fixed(text("ok")))
	}
}

func needsSampling(_ context.Context, req *mcp.CallToolRequest, _ map[string]any) (*mcp.CallToolResult, any, error) {
	if c := req.ClientCapabilities(); c != nil && c.Sampling != nil {
		return &mcp.CallToolResult{Content: []mcp.Content{text("sampling is there")}}, nil, nil
	}
	return nil, nil, &jsonrpc.Error{
		Code:    mcp.CodeMissingRequiredClientCapabilities,
		Message: "this tool needs sampling",
		Data:    json.RawMessage(`{"requiredCapabilities":{"sampling":{}}}`),
	}
}

func logs(ctx context.Context, req *mcp.CallToolRequest, _ map[string]any) (*mcp.CallToolResult, any, error) {
	if err := req.Session.Log(ctx, &mcp.LoggingMessageParams{Level: "info", Data: "working"}); err != nil {
		return nil, nil, err
	}
	return &mcp.CallToolResult{Content: []mcp.Content{text("logged")}}, nil, nil
}

func addResources(server *mcp.Server) {
	static := func(uri string, contents *mcp.ResourceContents) {
		contents.URI = uri
		server.AddResource(&mcp.Resource{URI: uri, Name: uri, Description: "Never changes.", MIMEType: contents.MIMEType},
			func(context.Context, *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
				return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{contents}}, nil
			})
	}
	static("test://static-text", &mcp.ResourceContents{MIMEType: "text/plain", Text: "This is the content of the static text resource."})
	static("test://static-binary", &mcp.ResourceContents{MIMEType: "image/png", Blob: pixel})
	server.AddResourceTemplate(
		&mcp.ResourceTemplate{URITemplate: "test://template/{id}/data", Name: "template", Description: "Depends on the id.", MIMEType: "application/json"},
		func(_ context.Context, req *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
			uri := req.Params.URI
			id := strings.TrimSuffix(strings.TrimPrefix(uri, "test://template/"), "/data")
			body := fmt.Sprintf(`{"id":%q,"templateTest":true,"data":"Data for ID: %s"}`, id, id)
			return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{{URI: uri, MIMEType: "application/json", Text: body}}}, nil
		})
}
