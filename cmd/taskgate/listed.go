package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"taskgate/gateway/config"
	"taskgate/gateway/upstream"
	"taskgate/gateway/upstream/reading"
	"taskgate/gateway/upstream/stdio"
	"taskgate/shim"
	"taskgate/shim/job"
)

// checkListed asks each server which tools it has, and compares them with those that the configuration names. It returns
// what is wrong, and what is likely to be, with keys.
func checkListed(ctx context.Context, c *config.Config) (wrong, doubtful []string) {
	for i, u := range c.Upstreams {
		at := fmt.Sprintf("upstreams[%d]", i)
		tools, err := listTools(ctx, c, u)
		if err != nil {
			wrong = append(wrong, at+": "+err.Error())
			continue
		}
		l := listed{u: u, tools: tools}
		for rule := range u.Tools {
			l.checkRule(fmt.Sprintf("%s.tools[%d]", at, rule), rule)
		}
		wrong, doubtful = append(wrong, l.wrong...), append(doubtful, l.doubtful...)
	}
	return wrong, doubtful
}

// listTools returns the tools of a server, by name.
func listTools(ctx context.Context, c *config.Config, u *config.Upstream) (map[string]json.RawMessage, error) {
	quiet := slog.New(slog.DiscardHandler)
	cfg := upstreamConfig(c, u, newReplica(), quiet, &telemetry{})
	var err error
	if cfg.TLS, err = clientTLS(u.TLS); err != nil {
		return nil, err
	}
	if u.Command != "" {
		cfg.Transport = stdio.New(stdioConfig(c, u, time.Minute, quiet))
	}
	client, err := upstream.New(cfg)
	if err != nil {
		return nil, err
	}
	defer func() {
		ctx, stop := context.WithTimeout(context.Background(), farewell)
		defer stop()
		_ = client.Close(ctx) // the list is there
	}()
	return client.ListTools(ctx, shim.Session{Key: "check"})
}

// listed compares the rules of an upstream with the tools of its server.
type listed struct {
	u               *config.Upstream
	tools           map[string]json.RawMessage
	wrong, doubtful []string
}

func (l *listed) addWrong(at, format string, args ...any) {
	l.wrong = append(l.wrong, at+": "+fmt.Sprintf(format, args...))
}

// checkRule checks whether a rule is for any tool, and the job of each tool that it decides on.
func (l *listed) checkRule(at string, rule int) {
	r, fits := &l.u.Tools[rule], false
	for _, name := range slices.Sorted(maps.Keys(l.tools)) {
		says := reading.HintsOf(l.tools[name])
		if r.Match.Fits(name, says) {
			fits = true
			if r.Job != nil && l.u.RuleOf(name, says) == rule {
				l.checkJob(at+".job", name, r.Job)
			}
		}
	}
	switch {
	case fits:
	case r.Match.IsName():
		l.addWrong(at+".match", "the server has no tool %s%s", r.Match, l.suggestTool(r.Match.Name))
	default:
		l.doubtful = append(l.doubtful, at+".match: no tool of the server matches")
	}
}

// suggestTool is a hint at the tool that is probably meant; "" for none.
func (l *listed) suggestTool(name string) string {
	return config.DidYouMean(name, slices.Sorted(maps.Keys(l.tools)))
}

// checkJob checks how the job of a tool is followed.
func (l *listed) checkJob(at, starts string, j *config.Job) {
	rules := j.Rules()
	for _, one := range []struct {
		key  string
		call *job.Call
	}{{"status", &rules.Status}, {"result", rules.Result}, {"cancel", rules.Cancel}} {
		if one.call != nil {
			l.checkCall(at+"."+one.key, starts, one.call)
		}
	}
}

// checkCall checks the call of a job tool: whether there is such a tool, and it takes these arguments.
func (l *listed) checkCall(at, starts string, c *job.Call) {
	tool, ok := l.tools[c.Tool]
	if !ok {
		l.addWrong(at+".tool", "the server has no tool %s%s", c.Tool, l.suggestTool(c.Tool))
		return
	}
	given, takes := c.Arguments.Names(), argumentsOf(tool)
	for _, name := range takes.required {
		if !slices.Contains(given, name) {
			l.addWrong(at+".arguments", "%s needs the argument %s", c.Tool, name)
		}
	}
	for _, name := range given {
		if !takes.takesName(name) {
			l.addWrong(at+".arguments", "%s has no argument %s%s", c.Tool, name, config.DidYouMean(name, takes.names))
		}
	}
	of := argumentsOf(l.tools[starts])
	for _, path := range c.Arguments.Repeats() {
		if !of.takesName(path[0]) {
			l.addWrong(at+".arguments", "%s has no argument %s, so {arguments.%s} would be left out", starts, path[0], strings.Join(path, "."))
		}
	}
}

// arguments are those that a tool takes, by its input schema.
type arguments struct {
	names, required []string
	open            bool // it may take others as well
}

func argumentsOf(tool json.RawMessage) (a arguments) {
	var t struct {
		InputSchema struct {
			Properties, PatternProperties map[string]json.RawMessage
			Required                      []string
			AdditionalProperties          json.RawMessage
		}
	}
	if json.Unmarshal(tool, &t) != nil { // a schema that cannot be read says nothing
		return arguments{open: true}
	}
	s := t.InputSchema
	a.names, a.required = slices.Sorted(maps.Keys(s.Properties)), s.Required
	more := string(s.AdditionalProperties)
	a.open = len(s.PatternProperties) > 0 || more != "" && more != "false" || len(a.names) == 0 && more == ""
	return a
}

func (a arguments) takesName(name string) bool { return a.open || slices.Contains(a.names, name) }
