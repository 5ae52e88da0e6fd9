package e2e

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"taskgate/internal/mcp"
	"taskgate/internal/programtest"
)

// askingClient is a client that can be asked: a row of the table. Who is missing has no
// such part: the SDK for Go (1.8.0) and version 1 of that for TypeScript (1.32.2) know
// nothing of the extension, and the former nothing of tasks at all. What a client can be
// asked, all of them can: forms, pages, sampling and roots.
type askingClient struct {
	name     string
	peer     string   // what runs it: a PEER of questions.mjs, or one of goPeers
	legacy   bool     // it is asked by requests, and can answer errors
	task     bool     // it makes tasks by params.task
	ext      bool     // it declares the extension
	policies []string // of the upstreams that it calls
}

func askingClients() []askingClient {
	plain, extension := []string{"auto", "handle"}, []string{"auto", "always"}
	return []askingClient{
		{name: "legacy, TypeScript 1.32.2", peer: "ts1", legacy: true, policies: plain},
		{name: "legacy, TypeScript 2.4.0", peer: "ts2legacy", legacy: true, policies: plain},
		{name: "legacy, Go SDK 1.8.0", peer: "go2025-11-25", legacy: true, policies: plain},
		{name: "legacy with tasks, TypeScript 1.32.2", peer: "ts1tasks", legacy: true, task: true, policies: []string{"auto"}},
		{name: "legacy with tasks, TypeScript 2.4.0 with ext-tasks 0.2.2", peer: "extlegacy", legacy: true, task: true, policies: []string{"auto"}},
		{name: "modern, TypeScript 2.4.0", peer: "ts2auto", policies: plain},
		{name: "modern, Go SDK 1.8.0", peer: "go2026-07-28", policies: plain},
		{name: "extension, TypeScript 2.4.0 with ext-tasks 0.2.2", peer: "exttasks", ext: true, policies: extension},
		{name: "extension, wire", peer: "wire", ext: true, policies: extension},
	}
}

// askedCall is a call that asks: what to call, what to do about the question, and
// what came of it.
type askedCall struct {
	Tool   string         `json:"tool"`
	Args   map[string]any `json:"args"`
	Answer string         `json:"answer"` // accept, decline, cancel, error, silent, gone
	Kind   string         `json:"kind"`   // what it asks for: form, page, sample, roots
	Secret string         `json:"secret"` // what the answer has in it
	Root   string         `json:"root"`   // the client's root, which is one for all its calls

	Asked []asking `json:"asked"`
	Text  string   `json:"text"`  // of the result
	Error string   `json:"error"` // in place of it
	Task  string   `json:"task"`

	mu        sync.Mutex    // guards Asked, which another goroutine than the call's writes
	meanwhile func()        // what happens while a Go client is asked, or nil
	over      chan struct{} // closed when the call has ended
	call      string        // how it names itself to the server
}

// asking is a question as a client hears it.
type asking struct{ Method, Text string }

// askingGroup is the calls of one client to one upstream in one place.
type askingGroup struct {
	URL   string       `json:"url"`
	Cells []*askedCall `json:"cells"`
	Error string       `json:"error"`

	client                askingClient
	serial                string // its number
	server, policy, place string
}

func (g *askingGroup) name() string {
	return fmt.Sprintf("%s, %s server, %s, on %s", g.client.name, g.server, g.policy, g.place)
}

// kinds are what is asked for and answered. Where nobody answers, there is a short time to;
// gone comes last, since it ends the connection.
func (g *askingGroup) kinds() [][2]string {
	kinds := [][2]string{
		{"form", "accept"}, {"form", "decline"}, {"form", "cancel"}, {"page", "accept"}, {"page", "decline"},
		{"sample", "accept"}, {"roots", "accept"},
	}
	if g.server == "everything" {
		return kinds
	}
	if g.client.peer != "wire" { // it has no way to answer an error
		kinds = append(kinds, [2]string{"form", "error"}, [2]string{"sample", "error"})
	}
	if g.client.legacy || g.client.peer == "wire" && g.inTask() {
		kinds = append(kinds, [2]string{"form", "silent"}, [2]string{"sample", "silent"})
	}
	return append(kinds, [2]string{"form", "gone"})
}

// inTask reports whether the client is asked in a task. Before there is one, the
// questions of a modern server are relayed (protocol.md 7.4).
func (g *askingGroup) inTask() bool {
	return g.client.task || g.policy == "handle" || g.client.ext && (g.policy == "always" || g.server != "modern")
}

// saysSo reports whether the client answers with an error where it cannot answer. ext-tasks
// says of itself what is said when nobody answers.
func (g *askingGroup) saysSo() bool { return g.client.legacy && g.client.peer != "extlegacy" }

// fill plans the calls of the group.
func (g *askingGroup) fill(serial *int) {
	for _, k := range g.kinds() {
		*serial++
		c := &askedCall{Tool: k[0], Answer: k[1], Kind: k[0], call: fmt.Sprintf("call-%d.", *serial)}
		c.Args, c.Secret, c.Root = map[string]any{"call": c.call}, toldSecret+c.call, "file:///"+toldSecret+g.serial
		switch {
		case g.server == "everything":
			c.Tool, c.Args = c.everything()
		case k[1] == "silent" || k[1] == "gone" || k[1] == "error" && !g.saysSo():
			c.Tool = "brief_" + c.Tool
		}
		if c.Kind == "roots" {
			c.Secret = c.Root
		}
		g.Cells = append(g.Cells, c)
	}
}

// everything is how server-everything is called for the same question.
func (c *askedCall) everything() (tool string, args map[string]any) {
	switch c.Kind {
	case "page":
		return "trigger-url-elicitation", map[string]any{"url": pageOf(c.call), "message": "open this"}
	case "sample":
		return "trigger-sampling-request", map[string]any{"prompt": askedSecret + c.call, "maxTokens": 10}
	case "roots":
		return "get-roots-list", map[string]any{}
	}
	return "trigger-elicitation-request", map[string]any{}
}

// TestQuestions: a tool asks its user something, in every pairing of a client and a
// server, on one replica, and with the answer landing on another replica than the one
// that runs the call. Whatever the client does, the server hears what it understands,
// once, and the call has an end. Nothing of it is in the logs and spans of a gateway.
func TestQuestions(t *testing.T) {
	programtest.Longest(t)
	t.Parallel()
	nodeDir(t)
	w := newAskingWorld(t)
	groups := w.groups()
	byPeer := map[string][]*askingGroup{}
	for _, g := range groups {
		byPeer[g.client.peer] = append(byPeer[g.client.peer], g)
	}
	t.Run("ask", func(t *testing.T) {
		for peer, groups := range byPeer {
			t.Run(peer, func(t *testing.T) {
				t.Parallel()
				if run := goPeers[peer]; run != nil {
					runGroups(t, groups, run)
					return
				}
				runNodeGroups(t, peer, groups)
			})
		}
	})
	for _, g := range groups {
		t.Run(g.name(), func(t *testing.T) {
			if g.Error != "" {
				t.Error(g.Error)
			}
			w.checkPlace(t, g)
			for _, c := range g.Cells {
				t.Run(c.Kind+" "+c.Answer, func(t *testing.T) { w.check(t, g, c) })
			}
		})
	}
}

// groups are all cells of the table.
func (w *askingWorld) groups() []*askingGroup {
	var groups []*askingGroup
	serial := 0
	for _, client := range askingClients() {
		for _, policy := range client.policies {
			for _, server := range []string{"legacy", "modern", "everything"} {
				for _, place := range []string{"one replica", "the other replica"} {
					g := &askingGroup{client: client, server: server, policy: policy, place: place}
					g.serial = fmt.Sprint("group-", len(groups))
					g.URL = w.places[place] + "/" + g.serial + "/" + upstreamOf(client, server, policy) + "/mcp"
					g.fill(&serial)
					groups = append(groups, g)
				}
			}
		}
	}
	return groups
}

// upstreamOf is the name of an upstream. Clients without a session share one with the
// server, and server-everything asks for roots once in each: there they have their own.
func upstreamOf(client askingClient, server, policy string) string {
	if server == "everything" {
		policy += "-" + client.peer
	}
	return server + "-" + policy
}

// checkPlace holds that the answers of the group took the way that its place has for
// them.
func (w *askingWorld) checkPlace(t *testing.T, g *askingGroup) {
	t.Helper()
	want := 0
	for _, c := range g.Cells {
		if c.Answer == "accept" || c.Answer == "decline" || c.Answer == "cancel" {
			want++
		}
	}
	if got := w.answersOf(g.serial); got < want {
		t.Errorf("%d answers came to %s, of at least %d", got, g.place, want)
	}
}

// runNodeGroups has questions.mjs make the calls, in one process.
func runNodeGroups(t *testing.T, peer string, groups []*askingGroup) {
	t.Helper()
	plan, err := json.Marshal(groups)
	if err != nil {
		t.Fatal(err)
	}
	var done []*askingGroup
	runNodeInto(t, &done, "questions.mjs", "PEER="+peer, "GROUPS="+string(plan), fmt.Sprint("AT_ONCE=", groupsAtOnce))
	for i, g := range done {
		groups[i].Error = g.Error
		for k, c := range g.Cells {
			to := groups[i].Cells[k]
			to.Asked, to.Text, to.Error, to.Task = c.Asked, c.Text, c.Error, c.Task
		}
	}
}

const cancelled = `"action":"cancel"`

// check holds what came of a call against what has to.
func (w *askingWorld) check(t *testing.T, g *askingGroup, c *askedCall) {
	t.Helper()
	heard, told := g.wants(c)
	switch {
	case told == "":
	case told == "error":
		if c.Error == "" && !strings.HasPrefix(c.Text, "error: ") {
			t.Errorf("the client was told %q and no error", c.Text)
		}
	case c.Error != "" || !strings.Contains(c.Text, told):
		t.Errorf("the client was told %q (error %q), want %q", c.Text, c.Error, told)
	}
	g.checkAsked(t, c)
	server := w.servers[g.server]
	if server == nil {
		return
	}
	var got []string
	if heard != "" {
		got = server.settles(t, c.call)
	}
	begun, all := server.of(c.call)
	switch {
	case begun != 1:
		t.Errorf("the server began the call %d times", begun)
	case heard == "" && len(all) > 0:
		t.Errorf("the server heard %q, which nobody said", all)
	case heard != "" && (len(all) != 1 || !strings.Contains(all[0], heard)):
		t.Errorf("the server heard %q, want %q once", got, heard)
	}
}

// checkAsked holds what the client was asked against the question, which it gets once.
func (g *askingGroup) checkAsked(t *testing.T, c *askedCall) {
	t.Helper()
	if c.Kind == "roots" && strings.HasPrefix(g.client.peer, "go") {
		return // the SDK answers by itself
	}
	asked := c.questions()
	if g.server == "everything" {
		// It lists the roots once in each session: for this call, or for none of them.
		roots := func(q asking) bool { return q.Method == mcp.MethodRootsList }
		if c.Kind == "roots" {
			for _, other := range g.Cells {
				asked = append(asked, other.questions()...)
			}
			if !slices.ContainsFunc(asked, roots) {
				t.Error("the client was never asked for its roots")
			}
			return
		}
		asked = slices.DeleteFunc(asked, roots)
	}
	again := c.Answer == "error" && g.client.ext // ext-tasks tries again as long as it is asked
	if len(asked) != 1 && !(again && len(asked) > 1) {
		t.Fatalf("the client was asked %d times: %+v", len(asked), asked)
	}
	for _, q := range asked {
		secret := c.Kind != "roots" && (c.Kind != "form" || g.server != "everything")
		if secret && !strings.Contains(q.Text, askedSecret+c.call) {
			t.Errorf("asked %+v", q)
		}
	}
}

// questions are what the client was asked in this call.
func (c *askedCall) questions() []asking {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.Asked)
}

// wants is what the server has to hear of a call ("" for nothing) and what the client
// is told of it (a part of its result; "error" for any error, "" for anything).
func (g *askingGroup) wants(c *askedCall) (heard, told string) {
	switch c.Answer {
	case "accept":
		if c.Kind == "page" { // to agree is all that there is to say
			return `"action":"accept"`, map[bool]string{true: "User completed", false: `"action":"accept"`}[g.server == "everything"]
		}
		return c.Secret, c.Secret
	case "decline", "cancel":
		if g.server == "everything" {
			return "", c.Answer
		}
		return `"action":"` + c.Answer + `"`, `"action":"` + c.Answer + `"`
	}
	heard, told = g.refused(c)
	switch {
	case c.Answer == "error" && g.saysSo() && g.server == "legacy":
		heard, told = "nobody at home", "nobody at home"
	case c.Answer == "gone":
		told = ""
	case c.Answer == "error" && !g.client.legacy && !(g.client.ext && g.inTask()):
		told = "error" // its SDK gives the call up
	}
	return heard, told
}

// refused is what is heard and told of questions that nobody answers: an elicitation
// is cancelled; of any other a server that waits for it hears an error, and one that
// would have to be called again does not hear at all (protocol.md H3).
func (g *askingGroup) refused(c *askedCall) (heard, told string) {
	waits := g.server == "legacy" || g.inTask() || g.client.legacy
	switch {
	case !waits: // it was relayed, and nobody came back
		return "", "error"
	case c.Kind == "form":
		return cancelled, cancelled
	case g.server == "legacy":
		return "error: ", "error"
	}
	return "", "error"
}
