package e2e

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	mcpgo "github.com/mark3labs/mcp-go/mcp"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"taskgate/internal/programtest"
)

// sdkClient is a client of an SDK with the limits that it has by default, as programs use it.
type sdkClient struct {
	name    string
	version string // of the protocol
	// makes calls the silent tool, up to so many times until it is answered. Its user aborts a call after a time, if that is
	// not 0.
	makes func(t *testing.T, url string, tries int, abort time.Duration) sdkCalls
	// behind says that the server of the Go SDK speaks this version with the client only through the gateway.
	behind bool
}

// sdkCalls is what came of the calls.
type sdkCalls struct {
	Failures []string
	Result   json.RawMessage
	Aborted  int64 // when the user aborted the call, in ms
}

var sdkClients = []sdkClient{
	{"TypeScript SDK 1.32.2", "2025-11-25", scriptedClient(""), false},
	{"TypeScript SDK 2.4.0", "2025-11-25", scriptedClient("legacy"), false},
	{"TypeScript SDK 2.4.0", "2026-07-28", scriptedClient("auto"), false},
	{"Go SDK 1.8.0", "2025-11-25", goClient("2025-11-25"), false},
	{"Go SDK 1.8.0", "2026-07-28", goClient("2026-07-28"), false},
	{"mcp-go 1.2.1", "2025-11-25", mcpGoClient("2025-11-25"), false},
	{"mcp-go 1.2.1", "2026-07-28", mcpGoClient("2026-07-28"), true},
}

// sdkWait is how long these clients wait: it is the default of the TypeScript SDKs, and what programs give the others.
const sdkWait = time.Minute

func scriptedClient(mode string) func(t *testing.T, url string, tries int, abort time.Duration) sdkCalls {
	return func(t *testing.T, url string, tries int, abort time.Duration) (got sdkCalls) {
		runNodeInto(t, &got, "repeat.mjs", "URL="+url, "MODE="+mode, fmt.Sprint("TRIES=", tries), fmt.Sprint("ABORT=", abort.Milliseconds()), env(t, "silent", map[string]any{"N": 1}))
		return got
	}
}

func goClient(version string) func(t *testing.T, url string, tries int, abort time.Duration) sdkCalls {
	return func(t *testing.T, url string, tries int, abort time.Duration) sdkCalls {
		s := connectAs(t, url, version)
		return makeCalls(t, tries, abort, func(ctx context.Context) (any, error) {
			return s.CallTool(ctx, &mcp.CallToolParams{Name: "silent", Arguments: map[string]any{"N": 1}})
		})
	}
}

func mcpGoClient(version string) func(t *testing.T, url string, tries int, abort time.Duration) sdkCalls {
	return func(t *testing.T, url string, tries int, abort time.Duration) sdkCalls {
		c, _ := connectMCPGo(t, roadOfMCPGo(t, url, version), version)
		call := mcpgo.CallToolRequest{}
		call.Params.Name, call.Params.Arguments = "silent", map[string]any{"N": 1}
		return makeCalls(t, tries, abort, func(ctx context.Context) (any, error) { return c.CallTool(ctx, call) })
	}
}

// makeCalls does in Go what repeat.mjs does.
func makeCalls(t *testing.T, tries int, abort time.Duration, call func(ctx context.Context) (any, error)) (got sdkCalls) {
	for range tries {
		ctx, stop := context.WithTimeout(t.Context(), sdkWait)
		if abort > 0 {
			time.AfterFunc(abort, func() {
				got.Aborted = time.Now().UnixMilli()
				stop()
			})
		}
		result, err := call(ctx)
		stop()
		if err == nil {
			got.Result, _ = json.Marshal(result)
			return got
		}
		got.Failures = append(got.Failures, err.Error())
	}
	return got
}

// startSilentFor starts the server for a client that reaches it directly. Without sessions the Go SDK speaks both eras.
func startSilentFor(t *testing.T, c sdkClient, takes time.Duration) *silentServer {
	t.Helper()
	return startSilentOf(t, takes, &mcp.StreamableHTTPOptions{Stateless: c.version == "2026-07-28", PropagateRequestCancellation: true})
}

// The programs of the SDKs call a silent tool again when its call has failed: directly each call is work anew and fails,
// and through the gateway the third gets the result of the one call. It writes a table of docs/compatibility.md.
func TestRepeatOfSDKs(t *testing.T) {
	programtest.Longest(t)
	t.Parallel()
	nodeDir(t)
	const takes, tries = 150 * time.Second, 3
	var mu sync.Mutex
	found := map[string]string{} // a client that the server does not speak with has no entry
	t.Run("clients", func(t *testing.T) {
		for _, c := range sdkClients {
			for _, direct := range []bool{true, false} {
				if direct && c.behind {
					continue
				}
				name := fmt.Sprintf("%s, %s, directly: %v", c.name, c.version, direct)
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					server, want := startSilentFor(t, c, takes), "3 calls, no result"
					url := server.url
					if !direct {
						want, server = "1 call, result at the 3rd try", startSilent(t, takes)
						url = startGateway(t, "--upstream", server.url).url
					}
					got := c.makes(t, url, tries, 0)
					outcome := callsAndTries(server, got)
					if outcome != want {
						t.Errorf("%s after %q, want %s", outcome, got.Failures, want)
					}
					mu.Lock()
					defer mu.Unlock()
					found[fmt.Sprint(c.name, c.version, direct)] = outcome
				})
			}
		}
	})
	if t.Failed() {
		return
	}
	var b strings.Builder
	b.WriteString("| client | version of the protocol | directly | through the gateway |\n|---|---|---|---|\n")
	for _, c := range sdkClients {
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", c.name, c.version, cmp.Or(found[fmt.Sprint(c.name, c.version, true)], "–"), found[fmt.Sprint(c.name, c.version, false)])
	}
	programtest.TableOf(t, "TestRepeatOfSDKs").Compare(t, b.String(), *update)
}

// callsAndTries says how many calls reached the server, and which of the client's got the result.
func callsAndTries(server *silentServer, got sdkCalls) string {
	calls := fmt.Sprintf("%d call", server.calls.Load())
	if server.calls.Load() != 1 {
		calls += "s"
	}
	if got.Result == nil {
		return calls + ", no result"
	}
	return calls + ", result at the " + []string{"1st", "2nd", "3rd"}[len(got.Failures)] + " try"
}

// A user who aborts a call that is old enough to be kept ends it at the server, wherever the abort does so without the gateway,
// and in any case in the modern era. How long that takes is logged. mcp-go says nothing over HTTP: it breaks the connection,
// which in a session is no abort.
func TestCancelOfSDKs(t *testing.T) {
	t.Parallel()
	nodeDir(t)
	const abort = worthKeeping + 2*time.Second
	heard := func(t *testing.T, c sdkClient, server *silentServer, url string) string {
		got := c.makes(t, url, 1, abort)
		timer := time.NewTimer(10 * time.Second)
		defer timer.Stop()
		select {
		case at := <-server.ended:
			return fmt.Sprintf("%d ms", at.UnixMilli()-got.Aborted)
		case <-timer.C:
			return ""
		}
	}
	for _, c := range sdkClients {
		t.Run(c.name+", "+c.version, func(t *testing.T) {
			t.Parallel()
			direct := ""
			if !c.behind {
				server := startSilentFor(t, c, time.Hour)
				direct = heard(t, c, server, server.url)
			}
			server := startSilent(t, time.Hour)
			g := startGateway(t, "--upstream", server.url)
			through := heard(t, c, server, g.url)
			if through == "" && (direct != "" || c.version == "2026-07-28") {
				t.Errorf("the server does not hear of it\n%s", g.Output())
			}
			t.Logf("the server heard of it directly after %q, through the gateway after %q", direct, through)
		})
	}
}
