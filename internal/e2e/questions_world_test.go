package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httputil"
	"strings"
	"sync"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"taskgate/internal/jsonrpc"
	"taskgate/internal/proc"
	"taskgate/internal/redistest"
)

// What questions and answers have in them, and logs and spans must not.
const (
	askedSecret = "asked-secret-"
	toldSecret  = "told-secret-"
)

// questioner is a server of the Go SDK with tools that ask. Each call names itself, so
// that what became of it can be told.
type questioner struct {
	url    string
	legacy bool

	mu    sync.Mutex
	begun map[string]int      // how often each call was begun
	heard map[string][]string // what it was answered
}

// startQuestioner serves one that answers with its questions, if it has no sessions, or
// else is legacy and sends requests. Its tools named brief_* do the same under another policy.
func startQuestioner(t *testing.T, options *sdk.StreamableHTTPOptions) *questioner {
	t.Helper()
	legacy := !options.Stateless
	q := &questioner{legacy: legacy, begun: map[string]int{}, heard: map[string][]string{}}
	server := newPeer("questioner")
	for _, name := range []string{"form", "page", "sample", "roots"} {
		for _, prefix := range []string{"", "brief_"} {
			addTool(server, prefix+name, func(ctx context.Context, r *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
				if legacy {
					return q.request(ctx, r, name)
				}
				return q.round(r, name)
			})
		}
	}
	q.url = serve(t, streamable(server, options))
	return q
}

// question is what the tool of that name asks in a call.
func question(name, call string) sdk.InputRequest {
	switch name {
	case "form":
		return askName(askedSecret + call)
	case "page":
		return &sdk.ElicitParams{Mode: "url", Message: "open this", URL: pageOf(call), ElicitationID: call}
	case "sample":
		return &sdk.CreateMessageParams{MaxTokens: 10,
			Messages: []*sdk.SamplingMessage{{Role: "user", Content: &sdk.TextContent{Text: askedSecret + call}}}}
	}
	return &sdk.ListRootsParams{}
}

// pageOf is the page that a call wants to be opened.
func pageOf(call string) string { return "https://example.com/" + askedSecret + call }

// callName is how a call names itself.
func callName(r *sdk.CallToolRequest) string {
	name, _ := jsonrpc.GetString(r.Params.Arguments, "call")
	return name
}

// request asks by a request, while the call waits.
func (q *questioner) request(ctx context.Context, r *sdk.CallToolRequest, name string) (*sdk.CallToolResult, error) {
	call := callName(r)
	q.begins(call)
	var answer any
	var err error
	switch ask := question(name, call).(type) {
	case *sdk.ElicitParams:
		answer, err = r.Session.Elicit(ctx, ask)
	case *sdk.CreateMessageParams:
		answer, err = r.Session.CreateMessage(ctx, ask)
	case *sdk.ListRootsParams:
		answer, err = r.Session.ListRoots(ctx, ask)
	}
	return q.hears(call, answer, err)
}

// round asks with its result, and is called again.
func (q *questioner) round(r *sdk.CallToolRequest, name string) (*sdk.CallToolResult, error) {
	call := callName(r)
	if r.Params.RequestState == "" {
		q.begins(call)
		return &sdk.CallToolResult{InputRequests: sdk.InputRequestMap{"theirs": question(name, call)}, RequestState: "of " + call}, nil
	}
	return q.hears(call, r.Params.InputResponses["theirs"], nil)
}

func (q *questioner) begins(call string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.begun[call]++
}

// hears notes an answer, and repeats it as the result.
func (q *questioner) hears(call string, answer any, err error) (*sdk.CallToolResult, error) {
	text, _ := json.Marshal(answer)
	if err != nil {
		text = []byte("error: " + err.Error())
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.heard[call] = append(q.heard[call], string(text))
	result := says(string(text))
	result.IsError = err != nil
	return result, nil
}

// of is what is known of a call.
func (q *questioner) of(call string) (begun int, heard []string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.begun[call], append(heard, q.heard[call]...)
}

// askingWorld is gateways in front of servers that ask, each server behind several
// policies. Its two places are a single gateway, and two of which one makes the calls
// and the other gets the answers.
type askingWorld struct {
	servers map[string]*questioner // by name; server-everything is not among them
	places  map[string]string      // their URLs; the next part of a path names the group
	outputs []*output

	mu       sync.Mutex
	answered map[string]int // how many answers were given in each group
}

// askingUpstream is one upstream, askingPolicies what differs among those of a server.
// The grace is long: on a busy machine a call must not become a task before the server
// has asked.
const askingUpstream = `
  - name: %[1]s
    url: %[2]s
    era: %[4]s
    tools: [{match: "brief_*", input_timeout: 4s}]
    without_tasks_after: 5s
    defaults: {grace: 20s, poll_interval: 50ms, input_timeout: 30s, %[3]s
`

// eraOf is the era of a server of the Go SDK. One that is called modern here has no
// sessions. It speaks legacy, too, but has no questions and no capabilities of clients then,
// so legacy clients are served across eras.
func eraOf(modern bool) string {
	if modern {
		return "modern"
	}
	return "auto"
}

var askingPolicies = map[string]string{
	"auto":   "tasks: auto}",
	"always": "tasks: always}",
	"handle": "tasks: required}\n    without_tasks: handle",
}

const askingConfig = `
store: %s
heartbeat: 2s
log: {level: debug}
state_keys: ["MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="]
upstreams:
`

// newAskingWorld starts everything.
func newAskingWorld(t *testing.T) *askingWorld {
	t.Helper()
	w := &askingWorld{
		servers: map[string]*questioner{
			"legacy": startQuestioner(t, &sdk.StreamableHTTPOptions{}),
			"modern": startQuestioner(t, &sdk.StreamableHTTPOptions{Stateless: true}),
		},
		places: map[string]string{}, answered: map[string]int{},
	}
	t.Cleanup(func() { w.checkSilence(t) }) // when the gateways have ended
	upstreams := w.upstreams(startEverything(t))
	yaml := func(store string) string { return fmt.Sprintf(askingConfig, store) + upstreams }
	one := w.start(t, yaml("embedded"))
	w.places["one replica"] = w.proxy(t, one, one)
	store := redistest.Start(t)
	w.places["the other replica"] = w.proxy(t, w.start(t, yaml(store.URL())), w.start(t, yaml(store.URL())))
	return w
}

// upstreams is the configuration of all upstreams that the table calls.
func (w *askingWorld) upstreams(everything string) string {
	var yaml strings.Builder
	written := map[string]bool{}
	for _, client := range askingClients() {
		for _, policy := range client.policies {
			for server, url := range map[string]string{
				"legacy": w.servers["legacy"].url, "modern": w.servers["modern"].url, "everything": everything,
			} {
				name := upstreamOf(client, server, policy)
				if written[name] {
					continue
				}
				written[name] = true
				fmt.Fprintf(&yaml, askingUpstream, name, url, askingPolicies[policy], eraOf(server == "modern"))
			}
		}
	}
	return yaml.String()
}

// start runs a gateway that says all that it can, and returns its address.
func (w *askingWorld) start(t *testing.T, yaml string) (addr string) {
	t.Helper()
	out := &output{}
	w.outputs = append(w.outputs, out)
	c := proc.Command{Env: []string{"OTEL_TRACES_EXPORTER=console"}, Stdout: out, Stderr: out}
	return startAt(t, freeAddr(t), c, configured(t, yaml)...).addr
}

// proxy is the URL of a proxy that brings answers to one address and calls to another.
// It takes the name of the group off the path, and counts the answers of each.
func (w *askingWorld) proxy(t *testing.T, calls, answers string) string {
	t.Helper()
	proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		group, path, _ := strings.Cut(r.In.URL.Path[1:], "/")
		r.Out.URL.Path, r.Out.URL.Scheme, r.Out.URL.Host = "/"+path, "http", calls
		if n := answersIn(takeBody(r.Out)); n > 0 {
			r.Out.URL.Host = answers
			w.mu.Lock()
			defer w.mu.Unlock()
			w.answered[group] += n
		}
	}}
	return serve(t, proxy)
}

// answersOf is how many answers there were in the calls of a group.
func (w *askingWorld) answersOf(group string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.answered[group]
}

// takeBody reads the body of a request, which keeps it.
func takeBody(r *http.Request) []byte {
	if r.Body == nil {
		return nil
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	return body
}

// answersIn is how many answers to questions a message carries: one as a response, and as
// many as it has as a retry or tasks/update. Questions that come together are asked
// together, and may be answered so.
func answersIn(body []byte) int {
	if _, isRequest := jsonrpc.GetString(body, "method"); len(body) > 0 && !isRequest {
		return 1
	}
	n := 0
	responses, _ := jsonrpc.Get(body, "params", "inputResponses")
	for range jsonrpc.Members(responses) {
		n++
	}
	return n
}

// checkSilence looks through everything that the gateways wrote.
func (w *askingWorld) checkSilence(t *testing.T) {
	t.Helper()
	for _, o := range w.outputs {
		text := o.String()
		for _, there := range []string{"level=", `"SpanContext"`} {
			if !strings.Contains(text, there) {
				t.Errorf("no %s in an output of %d bytes", there, len(text))
			}
		}
		for _, secret := range []string{askedSecret, toldSecret} {
			if i := strings.Index(text, secret); i >= 0 {
				t.Errorf("in the output: …%s…", text[max(0, i-300):min(len(text), i+100)])
			}
		}
	}
}

// settles waits for what a call was answered at the server.
func (q *questioner) settles(t *testing.T, call string) []string {
	t.Helper()
	var heard []string
	until(t, "the server hears an answer", func() bool {
		_, heard = q.of(call)
		return len(heard) > 0
	})
	return heard
}
