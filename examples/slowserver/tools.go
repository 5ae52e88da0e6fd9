package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// newServer makes the MCP server with its tools.
func newServer() *mcp.Server {
	server := mcp.NewServer(&mcp.Implementation{Name: "slowserver", Version: "1.0.0"}, &mcp.ServerOptions{
		Instructions: "Tools that take their time.",
	})
	mcp.AddTool(server, &mcp.Tool{
		Name:        "research",
		Description: "Looks a topic up in several places and writes a short report. Takes seconds.",
	}, research)
	mcp.AddTool(server, &mcp.Tool{
		Name:        "write",
		Description: "Writes a few lines and reports each word as it comes. Takes seconds.",
	}, write)
	mcp.AddTool(server, &mcp.Tool{
		Name:        "count_words",
		Description: "Counts the words of a text. Answers at once.",
	}, countWords)
	mcp.AddTool(server, &mcp.Tool{
		Name:        "forecast",
		Description: "Computes a table of numbers. Takes seconds and returns structured output.",
	}, forecast)
	mcp.AddTool(server, &mcp.Tool{
		Name:        "fail",
		Description: "Works for some seconds and then fails.",
	}, fail)
	return server
}

// steps are the steps of research, in order.
var steps = []string{"collecting sources", "reading sources", "comparing claims", "checking numbers", "writing the report"}

type researchInput struct {
	Topic   string  `json:"topic" jsonschema:"what to find out about"`
	Seconds float64 `json:"seconds,omitempty" jsonschema:"how long the work takes, 5 unless given"`
}

func research(ctx context.Context, req *mcp.CallToolRequest, in researchInput) (*mcp.CallToolResult, any, error) {
	if err := work(ctx, req, seconds(in.Seconds), steps); err != nil {
		return nil, nil, err
	}
	return text("Report on %s: after %d steps of careful work, it is as expected.", in.Topic, len(steps)), nil, nil
}

type writeInput struct {
	Topic   string  `json:"topic" jsonschema:"what to write about"`
	Seconds float64 `json:"seconds,omitempty" jsonschema:"how long the work takes, 5 unless given"`
}

func write(ctx context.Context, req *mcp.CallToolRequest, in writeInput) (*mcp.CallToolResult, any, error) {
	words := strings.SplitAfter(fmt.Sprintf("Some say that %s is best when nobody waits for it; "+
		"others watch it become what it is, word by word.", in.Topic), " ")
	if err := work(ctx, req, seconds(in.Seconds), words); err != nil {
		return nil, nil, err
	}
	return text("%s", strings.Join(words, "")), nil, nil
}

type countInput struct {
	Text string `json:"text" jsonschema:"the text whose words are counted"`
}

func countWords(_ context.Context, _ *mcp.CallToolRequest, in countInput) (*mcp.CallToolResult, any, error) {
	return text("%d", len(strings.Fields(in.Text))), nil, nil
}

type forecastInput struct {
	City    string  `json:"city" jsonschema:"where"`
	Days    int     `json:"days,omitempty" jsonschema:"how many days ahead, 3 unless given"`
	Seconds float64 `json:"seconds,omitempty" jsonschema:"how long the work takes, 5 unless given"`
}

type forecastOutput struct {
	City         string `json:"city" jsonschema:"where"`
	Temperatures []int  `json:"temperatures" jsonschema:"degrees Celsius, one per day"`
}

func forecast(ctx context.Context, req *mcp.CallToolRequest, in forecastInput) (*mcp.CallToolResult, forecastOutput, error) {
	days := min(max(in.Days, 0), 14)
	if days == 0 {
		days = 3
	}
	out := forecastOutput{City: in.City}
	var names []string
	for day := range days {
		out.Temperatures = append(out.Temperatures, 12+(len(in.City)+5*day)%9)
		names = append(names, fmt.Sprintf("day %d", day+1))
	}
	if err := work(ctx, req, seconds(in.Seconds), names); err != nil {
		return nil, forecastOutput{}, err
	}
	return nil, out, nil
}

type failInput struct {
	Seconds float64 `json:"seconds,omitempty" jsonschema:"how long until it fails, 5 unless given"`
}

func fail(ctx context.Context, req *mcp.CallToolRequest, in failInput) (*mcp.CallToolResult, any, error) {
	if err := work(ctx, req, seconds(in.Seconds), []string{"trying", "trying harder"}); err != nil {
		return nil, nil, err
	}
	return nil, nil, errors.New("the archive is closed today")
}

// seconds returns the time that the caller asked for, within reason.
func seconds(n float64) time.Duration {
	if n <= 0 {
		n = 5
	}
	return time.Duration(min(n, 3600) * float64(time.Second))
}

// work takes the given time in steps and reports each one as it begins.
func work(ctx context.Context, req *mcp.CallToolRequest, length time.Duration, steps []string) error {
	ticker := time.NewTicker(length / time.Duration(len(steps)))
	defer ticker.Stop()
	for i, step := range steps {
		if err := report(ctx, req, i, len(steps), step); err != nil {
			return err
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// report tells a client that asked for progress how far the work is.
func report(ctx context.Context, req *mcp.CallToolRequest, done, total int, message string) error {
	token := req.Params.GetProgressToken()
	if token == nil {
		return nil
	}
	return req.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{
		ProgressToken: token,
		Progress:      float64(done + 1),
		Total:         float64(total),
		Message:       message,
	})
}

func text(format string, args ...any) *mcp.CallToolResult {
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: fmt.Sprintf(format, args...)}}}
}
