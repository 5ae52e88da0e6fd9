package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// startTeller serves a tool that says what it does by progress.
func startTeller(t *testing.T, stateless bool) string {
	t.Helper()
	server := sdk.NewServer(&sdk.Implementation{Name: "teller", Version: "1"}, nil)
	server.AddTool(&sdk.Tool{Name: "tell", InputSchema: json.RawMessage(`{"type":"object"}`)},
		func(ctx context.Context, r *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			for i := range 5 {
				<-time.After(100 * time.Millisecond)
				if err := r.Session.NotifyProgress(ctx, &sdk.ProgressNotificationParams{
					ProgressToken: r.Params.GetProgressToken(), Progress: float64(i + 1), Message: fmt.Sprint("step ", i),
				}); err != nil {
					return nil, err
				}
			}
			return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: "told"}}}, nil
		})
	web := httptest.NewServer(sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return server },
		&sdk.StreamableHTTPOptions{Stateless: stateless}))
	t.Cleanup(func() {
		web.CloseClientConnections()
		web.Close()
	})
	return web.URL
}

const tellingConfig = `
upstreams:
  - name: teller
    path: /mcp
    url: %s
    era: %s
`

// The client of the TypeScript SDK 1.32.2 that declares tasks.streaming.partial reads
// along what a tool of its task says. One that does not declare it hears nothing of it.
func TestTypeScriptPartials(t *testing.T) {
	t.Parallel()
	nodeDir(t)
	for name, stateless := range map[string]bool{"legacy server": false, "modern server": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := startGateway(t, configured(t, fmt.Sprintf(tellingConfig, startTeller(t, stateless), eraOf(stateless)))...)
			var want []string
			for i := range 5 {
				want = append(want, fmt.Sprint("step ", i))
			}
			told := runPartials(t, g.url, "PARTIAL=1")
			if got := told.texts(t); !slices.Equal(got, want) || !told.StreamPartial {
				t.Errorf("it read %q (the tool said so: %t), want %q", got, told.StreamPartial, want)
			}
			quiet := runPartials(t, g.url)
			if len(quiet.Partials) > 0 || quiet.StreamPartial || slices.Contains(quiet.Others, "notifications/message") {
				t.Errorf("without opting in: %+v", quiet)
			}
		})
	}
}

// partialsTold is what ts1partials.mjs prints.
type partialsTold struct {
	Task     string
	Partials []struct {
		Task string
		Seq  int
		Text []string
	}
	Others        []string // methods of all other notifications
	StreamPartial bool     // what the tool says of itself
	Result        json.RawMessage
}

func runPartials(t *testing.T, url string, env ...string) *partialsTold {
	t.Helper()
	var told partialsTold
	runNodeInto(t, &told, "ts1partials.mjs", append(env, "URL="+url)...)
	if got := textOf(t, told.Result); got != "told" {
		t.Errorf("the result is %q", got)
	}
	return &told
}

// texts are the blocks of all partial results, which have to be without gap or repeat.
func (p *partialsTold) texts(t *testing.T) []string {
	t.Helper()
	var all []string
	for i, n := range p.Partials {
		if n.Seq != i || n.Task != p.Task {
			t.Errorf("the %d. partial result has seq %d and is of %s, not %s", i, n.Seq, n.Task, p.Task)
		}
		all = append(all, n.Text...)
	}
	return all
}
