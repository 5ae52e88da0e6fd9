package main

import (
	"context"
	"fmt"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// prompt is a result with one message for each content.
func prompt(contents ...mcp.Content) *mcp.GetPromptResult {
	var result mcp.GetPromptResult
	for _, c := range contents {
		result.Messages = append(result.Messages, &mcp.PromptMessage{Role: "user", Content: c})
	}
	return &result
}

// fixedPrompt is a prompt that always reads the same.
func fixedPrompt(contents ...mcp.Content) mcp.PromptHandler {
	return func(context.Context, *mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
		return prompt(contents...), nil
	}
}

func argument(name string) *mcp.PromptArgument {
	return &mcp.PromptArgument{Name: name, Description: "An argument.", Required: true}
}

func addPrompts(server *mcp.Server, legacy bool) {
	server.AddPrompt(&mcp.Prompt{Name: "test_simple_prompt", Description: "Without arguments."},
		fixedPrompt(text("This is a simple prompt for testing.")))
	server.AddPrompt(&mcp.Prompt{Name: "test_prompt_with_image", Description: "With an image."},
		fixedPrompt(&mcp.ImageContent{Data: pixel, MIMEType: "image/png"}, text("Please analyze the image above.")))
	server.AddPrompt(&mcp.Prompt{
		Name: "test_prompt_with_arguments", Description: "With arguments.",
		Arguments: []*mcp.PromptArgument{argument("arg1"), argument("arg2")},
	}, func(_ context.Context, req *mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
		a := req.Params.Arguments
		return prompt(text(fmt.Sprintf("Prompt with arguments: arg1='%s', arg2='%s'", a["arg1"], a["arg2"]))), nil
	})
	server.AddPrompt(&mcp.Prompt{
		Name: "test_prompt_with_embedded_resource", Description: "With a resource.",
		Arguments: []*mcp.PromptArgument{argument("resourceUri")},
	}, func(_ context.Context, req *mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
		resource := embedded(req.Params.Arguments["resourceUri"], "text/plain", "Embedded resource content for testing.")
		return prompt(resource, text("Please process the embedded resource above.")), nil
	})
	server.AddPrompt(&mcp.Prompt{Name: "test_input_required_result_prompt", Description: "Asks first."},
		func(ctx context.Context, req *mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
			question := mcp.InputRequestMap{"user_context": form("What context should the prompt use?", "context", "string")}
			if legacy {
				answers, err := ask(ctx, req.Session, question)
				if err != nil {
					return nil, err
				}
				req.Params.InputResponses = answers
			}
			if answers, ok := accepted(req.Params.InputResponses, "user_context"); ok {
				return prompt(text(fmt.Sprintf("In the context of %v.", answers["context"]))), nil
			}
			return &mcp.GetPromptResult{InputRequests: question}, nil
		})
}
