package e2e

import (
	"context"
	"fmt"
	"net/http/httputil"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"taskgate/internal/mcp"
	"taskgate/internal/redistest"
)

// orphanedCall is a call of the Go SDK's client whose replica is killed while the
// client is asked.
type orphanedCall struct {
	version, server, policy string
	askedCall
}

// orphaningConfig is the configuration of the two replicas.
const orphaningConfig = `
store: %s
heartbeat: 1s
resume_after: 50ms
state_keys: ["MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="]
upstreams:
`

// TestRunnerGoneWhileAsked: the replica that runs a call is killed while a client of the
// Go SDK is asked, and the answer comes to another one. That one goes on with the call
// if it can, and the server hears the answer once; otherwise the client is told that the
// call was lost. In no case is the tool run again.
func TestRunnerGoneWhileAsked(t *testing.T) {
	t.Parallel()
	servers := map[string]*questioner{
		"legacy":    startQuestioner(t, &sdk.StreamableHTTPOptions{}),
		"resumable": startQuestioner(t, resumable()),
		"modern":    startQuestioner(t, &sdk.StreamableHTTPOptions{Stateless: true}),
	}
	yaml := fmt.Sprintf(orphaningConfig, redistest.Start(t).URL())
	var calls []*orphanedCall
	for server, q := range servers {
		for _, policy := range []string{"auto", "handle"} {
			yaml += fmt.Sprintf(askingUpstream, server+"-"+policy, q.url, askingPolicies[policy], eraOf(server == "modern"))
			for _, version := range []string{mcp.Version20251125, mcp.Version20260728} {
				calls = append(calls, newOrphanedCall(version, server, policy))
			}
		}
	}
	a, b := startGateway(t, configured(t, yaml)...), startGateway(t, configured(t, yaml)...)
	url, move := untilGone(t, a.addr, b.addr)

	var asked, done sync.WaitGroup
	gone := make(chan struct{})
	for _, c := range calls {
		asked.Add(1)
		first := sync.OnceFunc(asked.Done)
		c.meanwhile = func() { first(); <-gone }
		done.Go(func() {
			defer first()
			if err := c.run(t.Context(), url); err != nil {
				c.Error = err.Error()
			}
		})
	}
	asked.Wait()
	move()
	a.Kill()
	close(gone)
	done.Wait()
	for _, c := range calls {
		t.Run(c.name(), func(t *testing.T) { c.check(t, servers[c.server]) })
	}
}

func newOrphanedCall(version, server, policy string) *orphanedCall {
	c := &orphanedCall{version: version, server: server, policy: policy}
	c.Tool, c.Kind, c.Answer, c.call = "form", "form", "accept", c.name()
	c.Args, c.Secret, c.over = map[string]any{"call": c.call}, toldSecret+c.call, make(chan struct{})
	return c
}

func (c *orphanedCall) name() string {
	return fmt.Sprintf("Go SDK 1.8.0 of %s, %s server, %s", c.version, c.server, c.policy)
}

// check holds what came of the call against what has to.
func (c *orphanedCall) check(t *testing.T, server *questioner) {
	t.Helper()
	if n := len(c.questions()); n != 1 {
		t.Errorf("the client was asked %d times", n)
	}
	if c.server == "legacy" { // nobody can learn what its server makes of the call
		c.checkLost(t)
		if begun, heard := server.of(c.call); begun != 1 || len(heard) != 0 {
			t.Errorf("the server began the call %d times and heard %q", begun, heard)
		}
		return
	}
	if heard := server.settles(t, c.call); len(heard) != 1 || !strings.Contains(heard[0], c.Secret) {
		t.Errorf("the server heard %q", heard)
	}
	if begun, _ := server.of(c.call); begun != 1 {
		t.Errorf("the server began the call %d times", begun)
	}
	// The answer to an ordinary request of a session goes with its replica (design.md 0.17).
	if c.version == mcp.Version20251125 && c.policy == "auto" {
		c.checkLost(t)
	} else if c.Error != "" || !strings.Contains(c.Text, c.Secret) {
		t.Errorf("the client was told %q (error %q)", c.Text, c.Error)
	}
}

func (c *orphanedCall) checkLost(t *testing.T) {
	t.Helper()
	if told := c.Error + c.Text; !strings.Contains(told, "the replica that ran this call was lost") {
		t.Errorf("the client was told %q", told)
	}
}

// untilGone is the URL of a proxy to one address, and to another one for what comes
// after gone.
func untilGone(t *testing.T, first, then string) (url string, gone func()) {
	t.Helper()
	var to atomic.Value
	to.Store(first)
	url = serve(t, &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.Out.URL.Scheme, r.Out.URL.Host = "http", to.Load().(string)
	}})
	return url, func() { to.Store(then) }
}

// run makes the call. A task of which the client was told is read until it has ended.
func (c *orphanedCall) run(ctx context.Context, url string) error {
	var now atomic.Pointer[askedCall]
	now.Store(&c.askedCall)
	session, err := clientSDK(&now, "file:///r").Connect(ctx, &sdk.StreamableClientTransport{
		Endpoint: url + "/" + c.server + "-" + c.policy + "/mcp",
	}, &sdk.ClientSessionOptions{ProtocolVersion: c.version})
	if err != nil {
		return err
	}
	defer session.Close()
	ctx, stop := context.WithTimeout(ctx, 45*time.Second)
	defer stop()
	for {
		c.Text, err = readSDK(ctx, session, &c.askedCall)
		if err == nil || c.Task == "" || ctx.Err() != nil {
			return err
		}
		c.Tool, c.Args = "task_result", map[string]any{"taskId": c.Task}
	}
}
