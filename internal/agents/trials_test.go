package agents

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"image"
	"image/png"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// trials is an MCP server whose tools are what the agents are tried with.
type trials struct {
	addr      string
	began     chan struct{} // gets one for each call of try_work, try_outlast or try_question that begins
	cancelled chan struct{} // gets one for each call of try_work that is cancelled
	harmed    chan struct{} // closed when the fault begins that try_outlast outlasts
}

// The texts that the tools return.
const (
	worked      = "the work is finished"
	closedToday = "the archive is closed today"
	lastWord    = "and this is the last word"
)

func startTrials(t *testing.T) *trials {
	t.Helper()
	s := &trials{began: make(chan struct{}, 100), cancelled: make(chan struct{}, 100), harmed: make(chan struct{})}
	server := mcp.NewServer(&mcp.Implementation{Name: "trials", Version: "1"}, nil)
	mcp.AddTool(server, &mcp.Tool{Name: "try_work", Description: "Works for so many seconds."}, s.work)
	mcp.AddTool(server, &mcp.Tool{Name: "try_outlast", Description: "Works for so many seconds after a fault has begun."}, s.outlast)
	mcp.AddTool(server, &mcp.Tool{Name: "try_question", Description: "Asks the user something."}, s.question)
	mcp.AddTool(server, &mcp.Tool{Name: "try_picture", Description: "Draws a picture."}, picture)
	mcp.AddTool(server, &mcp.Tool{Name: "try_text", Description: "Writes 200 kB."}, text)
	mcp.AddTool(server, &mcp.Tool{Name: "try_failure", Description: "Fails."}, failure)
	h := httptest.NewServer(mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, nil))
	t.Cleanup(h.CloseClientConnections)
	s.addr = h.Listener.Addr().String()
	return s
}

type workInput struct {
	Seconds  float64 `json:"seconds" jsonschema:"how long the work takes"`
	Progress bool    `json:"progress,omitempty" jsonschema:"whether the tool reports its progress"`
}

func (s *trials) work(ctx context.Context, req *mcp.CallToolRequest, in workInput) (*mcp.CallToolResult, any, error) {
	s.began <- struct{}{}
	end := time.NewTimer(time.Duration(in.Seconds * float64(time.Second)))
	defer end.Stop()
	tick := time.NewTicker(5 * time.Second)
	defer tick.Stop()
	for n := 1.0; ; n++ {
		select {
		case <-end.C:
			return said(worked), nil, nil
		case <-ctx.Done():
			s.cancelled <- struct{}{}
			return nil, nil, ctx.Err()
		case <-tick.C:
		}
		if token := req.Params.GetProgressToken(); in.Progress && token != nil {
			_ = req.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: token, Progress: n, Message: "still at it"})
		}
	}
}

func (s *trials) outlast(ctx context.Context, _ *mcp.CallToolRequest, in workInput) (*mcp.CallToolResult, any, error) {
	s.began <- struct{}{}
	select {
	case <-s.harmed:
	case <-ctx.Done():
		return nil, nil, ctx.Err()
	}
	select {
	case <-time.After(time.Duration(in.Seconds * float64(time.Second))):
		return said(worked), nil, nil
	case <-ctx.Done():
		return nil, nil, ctx.Err()
	}
}

// question asks for a colour, if the client takes questions.
func (s *trials) question(ctx context.Context, req *mcp.CallToolRequest, _ struct{}) (*mcp.CallToolResult, any, error) {
	s.began <- struct{}{}
	answer, err := req.Session.Elicit(ctx, &mcp.ElicitParams{Message: "Which colour?", RequestedSchema: object{
		"type": "object", "properties": object{"colour": object{"type": "string"}},
	}})
	if err != nil {
		return nil, nil, err
	}
	return said("the answer was " + answer.Action), nil, nil
}

func picture(context.Context, *mcp.CallToolRequest, struct{}) (*mcp.CallToolResult, any, error) {
	var b bytes.Buffer
	if err := png.Encode(&b, image.NewGray(image.Rect(0, 0, 16, 16))); err != nil {
		return nil, nil, err
	}
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.ImageContent{Data: b.Bytes(), MIMEType: "image/png"}}}, nil, nil
}

func text(context.Context, *mcp.CallToolRequest, struct{}) (*mcp.CallToolResult, any, error) {
	var b strings.Builder
	for i := 0; b.Len() < 200_000; i++ {
		fmt.Fprintf(&b, "line %d of many\n", i)
	}
	return said(b.String() + lastWord), nil, nil
}

func failure(context.Context, *mcp.CallToolRequest, struct{}) (*mcp.CallToolResult, any, error) {
	return nil, nil, errors.New(closedToday)
}

func said(text string) *mcp.CallToolResult {
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: text}}}
}
