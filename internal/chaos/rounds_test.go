package chaos

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"taskgate/internal/mcp"
)

// rounds is an MCP server of protocol version 2026-07-28, with the tools of the other
// one. It asks by its results (protocol.md 2.7), and goes on with a call when it is made
// again with the answers. It counts how often each call is begun, and what each question
// is answered with.
type rounds struct {
	url string

	mu     sync.Mutex
	runs   map[string]int    // calls that were begun
	given  map[string]*round // by requestState
	asked  map[string]*asked // questions, by name
	again  int               // calls that were made again
	strays int               // those that were made again with what was never given out
	left   int               // calls whose caller has gone
}

// round is where a call stands.
type round struct {
	call    string
	run     int
	at      int               // pieces said before, and the questions due then asked; -1 for none
	names   map[string]string // questions, by key
	answers []string
	again   int // how often the call was made again from here
}

// startRounds serves until the test ends.
func startRounds(t *testing.T) *rounds {
	u := &rounds{runs: map[string]int{}, given: map[string]*round{}, asked: map[string]*asked{}}
	u.url = "http://" + serve(t, http.HandlerFunc(u.serve)) + "/mcp"
	return u
}

func (u *rounds) serve(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost {
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // it was never received
	}
	var m message
	if err := json.Unmarshal(body, &m); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	switch m.Method {
	case mcp.MethodDiscover:
		answer(w, m.ID, `"result":{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{"tools":{}},"ttlMs":0,"cacheScope":"private"}`)
	case mcp.MethodToolsList:
		answer(w, m.ID, `"result":{"resultType":"complete","ttlMs":60000,"cacheScope":"private",`+toolList()[1:])
	case mcp.MethodToolsCall:
		u.callTool(w, r, m)
	default:
		w.Header().Set("Content-Type", mcp.TypeJSON)
		w.WriteHeader(http.StatusNotFound)
		fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"no such method"}}`, m.ID)
	}
}

// callTool begins a call, or goes on with it, until it asks or ends. It ends with its
// stream.
func (u *rounds) callTool(w http.ResponseWriter, r *http.Request, m message) {
	rd := u.enter(m)
	if rd == nil {
		answer(w, m.ID, `"error":{"code":-32602,"message":"no such state"}`)
		return
	}
	say := func(int, string) {}
	t := toolOf(m.Params.Name)
	if t.stream {
		w.Header().Set("Content-Type", mcp.TypeSSE)
		say = func(i int, text string) { u.say(w, m, i, text) }
	}
	member := u.work(r.Context(), m, rd, say)
	switch {
	case member == "":
		u.mu.Lock()
		defer u.mu.Unlock()
		u.left++
	case t.stream:
		fmt.Fprintf(w, "data: {\"jsonrpc\":\"2.0\",\"id\":%s,%s}\n\n", m.ID, member)
	default:
		answer(w, m.ID, member)
	}
}

// say sends progress, if it is wanted.
func (u *rounds) say(w http.ResponseWriter, m message, i int, text string) {
	if token := m.Params.Meta.ProgressToken; token != nil {
		fmt.Fprintf(w, "data: {\"jsonrpc\":\"2.0\",\"method\":%q,\"params\":{\"progressToken\":%s,\"progress\":%d,\"message\":%q}}\n\n", mcp.NotifyProgress, token, i+1, text)
		_ = http.NewResponseController(w).Flush() // who has gone is noticed at the end
	}
}

// enter is where a call stands that comes in: at its begin, or where it asked.
func (u *rounds) enter(m message) *round {
	call := m.Params.Arguments.Call
	u.mu.Lock()
	defer u.mu.Unlock()
	if m.Params.RequestState == "" && m.Params.InputResponses == nil {
		u.runs[call]++
		return &round{call: call, run: u.runs[call], at: -1, answers: make([]string, len(m.Params.Arguments.Asks))}
	}
	u.again++
	rd := u.given[m.Params.RequestState]
	if rd == nil || rd.call != call {
		u.strays++
		return nil
	}
	// A client that was asked itself makes the call again as a task, and recover: retry may run
	// that again. What it asks then is asked anew.
	next := &round{call: call, run: rd.run + rd.again, at: rd.at, answers: slices.Clone(rd.answers)}
	rd.again++
	for key, name := range rd.names {
		value := "(missing)"
		if response, ok := m.Params.InputResponses[key]; ok {
			value = valueOf(response)
		}
		a := u.asked[name]
		if a.answers = append(a.answers, value); a.closed.IsZero() {
			a.closed = time.Now()
		}
		_, n, _ := questionOf(name) // it is one of ours
		next.answers[n] = value
	}
	return next
}

// work is the call until its next questions, or its end; "" if its caller goes.
func (u *rounds) work(ctx context.Context, m message, rd *round, say func(int, string)) string {
	a := m.Params.Arguments
	said := saying(a.Call)
	for i := max(rd.at, 0); i <= len(said); i++ {
		if i > rd.at && slices.Contains(a.Asks, i) {
			return u.ask(a.Asks, i, rd)
		}
		if i == len(said) {
			break
		}
		// Some of it comes in bursts.
		if i%3 != 1 && !wait(ctx, time.Duration(a.Takes)*time.Millisecond/time.Duration(len(said))) {
			return ""
		}
		say(i, said[i])
	}
	return strings.Replace(outcome(m, rd.answers), `"result":{`, `"result":{"resultType":"complete",`, 1)
}

// ask gives out a state with the questions that are due. The keys are the same in every
// round, as they may be.
func (u *rounds) ask(asks []int, at int, rd *round) string {
	next := &round{call: rd.call, run: rd.run, at: at, answers: rd.answers, names: map[string]string{}}
	requests := map[string]any{}
	u.mu.Lock()
	defer u.mu.Unlock()
	for n, due := range asks {
		if due != at {
			continue
		}
		key, name := fmt.Sprintf("question-%d", len(requests)), questionName(rd.call, n, rd.run)
		next.names[key] = name
		u.asked[name] = &asked{at: time.Now()}
		requests[key] = map[string]any{"method": mcp.MethodElicit, "params": map[string]any{
			"mode": "form", "message": name, "requestedSchema": map[string]any{"type": "object", "properties": map[string]any{"name": map[string]any{"type": "string"}}},
		}}
	}
	state := uuid.NewString()
	u.given[state] = next
	b, _ := json.Marshal(map[string]any{"resultType": mcp.ResultInputRequired, "inputRequests": requests, "requestState": state}) // strings only: cannot fail
	return `"result":` + string(b)
}

// sum is a line for the summary.
func (u *rounds) sum() string {
	u.mu.Lock()
	defer u.mu.Unlock()
	return fmt.Sprintf("%d calls begun, %d questions in %d rounds, %d calls made again; %d callers left", len(u.runs), len(u.asked), len(u.given), u.again, u.left)
}

// outcomeOfRound is outcome for a question of the modern upstream.
func (a *asked) outcomeOfRound(said *conversation) string {
	by := "asked by a gateway"
	if said.relayed {
		by = "relayed"
	}
	how := "answered by the user"
	switch {
	case len(a.answers) == 0 && len(said.keys) == 0:
		by, how = "shown to nobody", "and without an answer (its gateway was gone, or its call over)"
	case len(a.answers) == 0:
		how = "without an answer (its user did not come back, its call was over, or its gateway gone)"
	case a.answers[0] == cancelled && len(said.keys) == 0:
		by, how = "shown to nobody", "and answered by the gateway"
	case a.answers[0] == cancelled:
		how = "answered by the gateway: out of time"
	case a.answers[0] == declined:
		how = "answered by the user: declined"
	}
	return "rounds: questions " + by + ", " + how
}

// checkRound holds a question of the modern upstream against what is promised of those
// besides (design.md 0.18).
func (a *asked) checkRound(said *conversation, patience time.Duration) error {
	if len(a.answers) > 1 {
		return fmt.Errorf("the call was made again %d times, with %q", len(a.answers), a.answers)
	}
	if !said.relayed && len(a.answers) > 0 && a.closed.Sub(a.at) > inputTimeout+patience {
		return fmt.Errorf("it was answered %s after it had been asked", a.closed.Sub(a.at))
	}
	for _, s := range said.said {
		if said.relayed && !s.heard.IsZero() && len(a.answers) == 0 {
			return fmt.Errorf("the call went on after %q, which never reached the upstream", s.value)
		}
	}
	return nil
}
