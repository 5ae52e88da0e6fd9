package endpoint

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync"

	"taskgate/gateway/config"
	"taskgate/gateway/translate"
	"taskgate/gateway/upstream"
	"taskgate/gateway/wire"
	"taskgate/internal/jsonrpc"
)

// Rights say which tools a caller is shown: those with a policy that lets the caller call them, or refuses the call
// with what the caller lacks. They hold for any configuration. Nil shows every tool.
type Rights func(config.Tool) bool

// rightsKey is the key of the context value of a request whose caller has Rights.
type rightsKey struct{}

// callerRights are the rights of the caller of a request, and who tells of other rights.
type callerRights struct {
	shows Rights
	from  *Watchers
}

// WithRights puts the rights of the caller of a request into its context.
func (e *Endpoint) WithRights(ctx context.Context, r Rights) context.Context {
	return context.WithValue(ctx, rightsKey{}, callerRights{r, e.Watchers})
}

// Shows reports whether the caller of a request is shown a tool.
func (e *Endpoint) Shows(ctx context.Context, tool string) bool {
	c, ok := ctx.Value(rightsKey{}).(callerRights)
	return !ok || c.shows(e.Config.RightsOf(tool))
}

// RightsMark stands for what the caller of a request is shown: callers with one mark are shown the same tools, as long as
// the configuration stays. It is "" where no tool is hidden from anybody.
func (e *Endpoint) RightsMark(ctx context.Context) string {
	c, ok := ctx.Value(rightsKey{}).(callerRights)
	if !ok || !e.Config.Hides() {
		return ""
	}
	var mark []byte
	for _, v := range c.shows.verdictsOf(e.Config) {
		mark = strconv.AppendBool(mark, v.shown)[:len(mark)+1] // its first letter
	}
	return string(mark)
}

// ShownTools is a page of the server's tools as the configuration has them, without those that are hidden from the
// caller. Where tools are hidden from some, it must be kept from other callers, whatever the server says of it
// (cacheScope).
func (e *Endpoint) ShownTools(ctx context.Context, result json.RawMessage) json.RawMessage {
	result = e.showJobs(result)
	if !e.Config.Hides() {
		return result
	}
	if scope, ok := jsonrpc.Get(result, "cacheScope"); ok && string(scope) != `"private"` {
		result = jsonrpc.With(result, json.RawMessage(`"private"`), "cacheScope")
	}
	return translate.EachTool(result, func(tool json.RawMessage) json.RawMessage {
		if name, _ := jsonrpc.GetString(tool, "name"); !e.Shows(ctx, name) {
			return nil
		}
		return tool
	})
}

// Offered is a server as its clients are told of it: where tools are hidden from some, a reload may change the list.
func (e *Endpoint) Offered(s upstream.Description) upstream.Description {
	if tools, _ := jsonrpc.Get(s.Capabilities, "tools"); e.Config.Hides() && jsonrpc.IsObject(tools) {
		s.Capabilities = jsonrpc.With(s.Capabilities, json.RawMessage(`true`), "tools", "listChanged")
	}
	return s
}

// Hidden is a call of a tool that is hidden from its caller. The server is called by a name that it has no tool of, so
// the answer is that to any unknown tool, in the words of the server and under the same policy. The zero value is a
// call of a tool that is shown.
type Hidden struct {
	Tool string // as the client has called it
	Sent string // in place of it
}

// HideTool makes a call that of an unknown tool, if its tool is hidden from its caller. It returns the params and the
// name that the call goes on with.
func (e *Endpoint) HideTool(ctx context.Context, params json.RawMessage, name string) (Hidden, json.RawMessage, string) {
	if e.Shows(ctx, name) {
		return Hidden{}, params, name
	}
	h := Hidden{Tool: name, Sent: rand.Text()}
	return h, jsonrpc.With(params, jsonrpc.AppendString(nil, h.Sent), "name"), h.Sent
}

// Reveal is the error of a call, with the name that its client has used.
func (h Hidden) Reveal(err error) error {
	f, ok := errors.AsType[*wire.Failure](err)
	if !ok || h.Sent == "" {
		return err
	}
	named := *f
	named.Message = strings.ReplaceAll(f.Message, h.Sent, h.Tool)
	return &named
}

// Watchers are the clients of an upstream that hear when other tools are shown to them because of a reload. They
// outlive the configuration. The zero value is ready.
type Watchers struct {
	mu sync.Mutex
	m  map[*watcher]struct{}
}

// watcher is one client.
type watcher struct {
	shows Rights
	news  func()
}

// WatchRights calls news each time that a reload shows the caller of a request other tools, until stop is called; never
// for a caller without Rights. news must return at once.
func WatchRights(ctx context.Context, news func()) (stop func()) {
	c, ok := ctx.Value(rightsKey{}).(callerRights)
	if !ok {
		return func() {}
	}
	w := &watcher{c.shows, news}
	c.from.mu.Lock()
	defer c.from.mu.Unlock()
	if c.from.m == nil {
		c.from.m = make(map[*watcher]struct{})
	}
	c.from.m[w] = struct{}{}
	return func() {
		c.from.mu.Lock()
		defer c.from.mu.Unlock()
		delete(c.from.m, w)
	}
}

// TellChanges tells those whom the configuration of now may show other tools than that of before.
func (w *Watchers) TellChanges(before, now *config.Upstream) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for one := range w.m {
		if !slices.Equal(one.shows.verdictsOf(before), one.shows.verdictsOf(now)) {
			one.news()
		}
	}
}

// verdict says whether the tools that a rule matches are shown.
type verdict struct {
	match string
	shown bool
}

// verdictsOf are the verdicts of an upstream's rules on a caller, the defaults last. The rules at the end that say the
// same as the defaults are left out. Where the verdicts are equal, the same tools are shown.
func (r Rights) verdictsOf(u *config.Upstream) []verdict {
	otherwise := verdict{shown: r(u.Defaults)}
	var all []verdict
	for _, rule := range u.Tools {
		if !rule.Match.UsesHints() {
			all = append(all, verdict{rule.Match.Name, r(rule.Tool)})
		}
	}
	for len(all) > 0 && all[len(all)-1].shown == otherwise.shown {
		all = all[:len(all)-1]
	}
	return append(all, otherwise)
}
