package chaos

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// How the upstream answers a call.
const (
	well      = "well"
	toolError = "tool_error" // a result with isError
	rpcError  = "rpc_error"  // a JSON-RPC error
)

// codeWrong is the code of the JSON-RPC errors of the upstream.
const codeWrong = 1234

// What a client does with its call.
const (
	polls      = "polls"      // asks until the end
	waits      = "waits"      // is told of the end, where its dialect can
	cancels    = "cancels"    // asks for the end
	leaves     = "leaves"     // does not look before all is over
	reconnects = "reconnects" // goes away for a while, comes back over new connections
	hangsUp    = "hangs up"   // does not even wait for the handle
)

// tool is one tool of the upstream with its policy in the gateway.
type tool struct {
	name   string
	always bool // a task at once, else after the grace
	stream bool // answers on a stream that can be resumed, else as JSON
	retry  bool // recover: retry
	mrtr   bool // early_input: mrtr
	// content says that what the tool says are pieces of its result.
	content bool
}

// mostRuns is how often a call under recover: retry may be executed.
const mostRuns = 3

// tools are all of them.
var tools = []tool{
	{name: "auto_stream", stream: true},
	{name: "always_stream", stream: true, always: true},
	{name: "always_content", stream: true, always: true, content: true},
	{name: "auto_mrtr", stream: true, mrtr: true},
	{name: "auto_json"},
	{name: "always_json", always: true},
	{name: "auto_retry", retry: true},
	{name: "always_retry", retry: true, always: true},
}

// toolOf finds a tool by its name.
func toolOf(name string) tool {
	return tools[slices.IndexFunc(tools, func(t tool) bool { return t.name == name })]
}

// allowed is how often a call of the tool may be executed.
func (t tool) allowed() int {
	if t.retry {
		return mostRuns
	}
	return 1
}

// call is one call, as planned.
type call struct {
	n         int
	id        string
	tool      tool
	takes     time.Duration // in the upstream
	outcome   string
	behaviour string
	after     time.Duration // when the client does what its behaviour says
	dialect   int           // index into the dialects there are
	random    *rand.Rand    // for which gateway to ask
	questions []question    // what the upstream asks meanwhile
	rounds    bool          // it is made at the modern upstream
	relayed   int           // what was said before the last round that was relayed: it is no part of a task
	watchers  int           // how many streams of partial results the client keeps
}

// plan derives the n-th call from the seed.
func plan(seed uint64, n int) *call {
	r := rand.New(rand.NewPCG(seed, uint64(n)+1))
	c := &call{n: n, id: fmt.Sprintf("call-%d-%d", seed, n), tool: tools[r.IntN(len(tools))], outcome: well, random: r}
	// Most are short, some are long enough to live through several faults.
	f := r.Float64()
	c.takes = 20*time.Millisecond + time.Duration(f*f*float64(*longest))
	switch p := r.IntN(20); {
	case p == 0:
		c.outcome = rpcError
	case p <= 2:
		c.outcome = toolError
	}
	c.behaviour = pick(r, []string{polls, polls, polls, waits, waits, cancels, cancels, leaves, reconnects, reconnects, hangsUp})
	c.after = time.Duration(r.Float64() * 1.2 * float64(c.takes))
	c.dialect = r.IntN(1 << 16)
	c.watchers = 1 + r.IntN(2)
	c.questions = planQuestions(r, c)
	return c
}

// pick takes one of a list.
func pick[T any](r *rand.Rand, list []T) T { return list[r.IntN(len(list))] }

// arguments of the call.
func (c *call) arguments() map[string]any {
	return map[string]any{"call": c.id, "takes": c.takes.Milliseconds(), "outcome": c.outcome, "asks": c.asks()}
}

// text is what the upstream returns for a call: a function of its id alone, of a
// size between a few bytes and some ten thousand.
func text(id string) string {
	h := fnv.New64a()
	_, _ = h.Write([]byte(id))
	sum := h.Sum64()
	n := int(sum % 50)
	if sum%7 == 0 {
		n = int(sum % 20000)
	}
	return fmt.Sprintf("%s %016x %s", id, sum, strings.Repeat("x", n))
}

// structured is the structured content of that result: nothing may happen to how
// its numbers are spelt.
func structured(id string) string {
	return fmt.Sprintf(`{"call":%q,"exact":12345678901234567890.10}`, id)
}

// result is the whole result of a call that does not go wrong as a request: the last
// blocks are what its questions were answered with.
func result(id, outcome string, answers []string) json.RawMessage {
	blocks := fmt.Appendf(nil, `{"type":"text","text":%q}`, text(id))
	for _, a := range answers {
		blocks = fmt.Appendf(blocks, `,{"type":"text","text":%q}`, a)
	}
	return fmt.Appendf(nil, `{"content":[%s],"structuredContent":%s,"isError":%t}`, blocks, structured(id), outcome == toolError)
}
