package e2e

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

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
			g := startGateway(t, configured(t, fmt.Sprintf(tellingConfig, serve(t, streamable(everyday(t.TempDir(), false, nil), &sdk.StreamableHTTPOptions{Stateless: stateless})), eraOf(stateless)))...)
			var want []string
			for i := range 5 {
				want = append(want, fmt.Sprint("step ", i+1))
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
	if got := textOf(t, told.Result); got != "walked" {
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
