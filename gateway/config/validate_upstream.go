package config

import (
	"fmt"
	"maps"
	"net"
	"net/textproto"
	"net/url"
	"path"
	"reflect"
	"slices"
	"strings"
	"time"

	"taskgate/shim"
)

// checkUpstreams checks the list as a whole and each entry.
func (p *problems) checkUpstreams(c *Config) {
	list := c.Upstreams
	if len(list) == 0 {
		p.add("upstreams", "at least one upstream is needed")
	}
	names, paths := map[string]int{}, map[string]int{}
	for i, u := range list {
		at := fmt.Sprintf("upstreams[%d]", i)
		if first, ok := names[u.Name]; ok && u.Name != "" {
			p.add(at+".name", "this name is already that of upstreams[%d]", first)
		} else if first, ok := paths[u.Path]; ok && u.Path != defaultPath("") {
			p.addFor([]string{at + ".path", at + ".name"}, "this path is already that of upstreams[%d]", first)
		}
		names[u.Name], paths[u.Path] = i, i
		p.checkUpstream(at, u)
		p.notItself(at, c, u)
		p.upstreamAuth(at, c, u)
	}
}

// upstreamAuth checks who may call an upstream. The auth of all upstreams is checked elsewhere.
func (p *problems) upstreamAuth(at string, c *Config, u *Upstream) {
	if u.Auth != nil {
		p.checkFields(at+".auth", u.Auth)
		own := Auth(*u.Auth)
		if !own.Required() && own.Anonymous != On {
			*p = append(*p, problem{
				paths:   []string{at + ".auth", at + ".auth.trusted_header"},
				message: "nobody could call: give keys, jwt, passthrough, or anonymous: on",
				onKey:   true,
			})
		}
		p.checkAuth(at+".auth", &own, c)
	}
	auth := c.AuthOf(u)
	if auth.Passthrough != nil && u.URL == "" {
		p.addFor([]string{at + ".auth", at + ".command", at}, "passthrough needs a server with a url: there is nothing to pass a header on with. Give this one an auth of its own")
	}
	if j := auth.JWT; j != nil && len(j.Audiences) > 0 && len(c.Audiences(u, j.Audiences)) == 0 {
		p.addFor([]string{at + ".auth.jwt.audiences", "auth.jwt.audiences", at},
			"nobody could call %s: all of jwt.audiences are addresses of other upstreams, and a token is taken at its own only", at)
	}
	if u.ForwardHost == On && len(c.Hosts()) == 0 {
		p.add(at+".forward_host", "needs allowed_hosts or public_url: only these names are sent to the server")
	}
	p.forwardHeaders(at+".forward_headers", u, auth)
	p.exposeHeaders(at+".expose_headers", u.ExposeHeaders)
	if u.anyTool(func(t *Tool) bool { return t.Rerun == On }) && (auth.Passthrough != nil || len(u.ForwardHeaders) > 0) {
		p.addFor([]string{at + ".defaults.rerun", at + ".tools", at}, "rerun is not for an upstream under passthrough or forward_headers: nothing of a client's request goes out without that client")
	}
	p.checkRights(at, u, auth)
}

func (p *problems) checkUpstream(at string, u *Upstream) {
	p.checkFields(at, u)
	p.servedPath(at, u)
	p.checkWay(at, u)
	p.checkTarget(at+".url", u.URL)
	p.checkHeaders(at+".headers", u.Headers)
	p.checkFields(at+".defaults", &u.Defaults)
	p.checkRules(at+".tools", u)
	checkJobs(p, at, u)
}

// servedPath checks where clients reach the upstream. A bad name is reported by itself, so the path
// that follows from it is left out.
func (p *problems) servedPath(at string, u *Upstream) {
	if u.Path == defaultPath(u.Name) {
		return
	}
	switch at += ".path"; {
	case !strings.HasPrefix(u.Path, "/"):
		p.add(at, "must begin with /")
	case path.Clean(u.Path) != u.Path:
		p.add(at, "must be plain: no //, no . or .. and no / at the end")
	case strings.HasPrefix(u.Path+"/", "/.well-known/"):
		p.add(at, "must not be under /.well-known/, where the gateway has metadata")
	case strings.Trim(u.Path, unreserved+"/") != "": // others are escaped in URLs, or mean something in route patterns
		p.add(at, "may hold letters, digits, '/', '-', '_', '.' and '~' only")
	}
}

// checkWay checks that there is one way to the server, and that no key is for the other way.
func (p *problems) checkWay(at string, u *Upstream) {
	program, address := u.Command != "", u.URL != ""
	switch {
	case program && address:
		p.addFor([]string{at + ".command", at + ".url"}, "an upstream has either url or command")
		return
	case !program && !address:
		p.addFor([]string{at + ".url", at + ".command"}, "url or command is required")
		return
	}
	v, usual := reflect.ValueOf(u).Elem(), reflect.ValueOf(NewUpstream("", "")).Elem()
	for _, k := range keysOf(v.Type()) {
		needs, f := k.tag.Get("needs"), v.FieldByIndex(k.index)
		other := needs == "command" && address || strings.HasPrefix(needs, "url") && program
		if other && (isScalar(f.Type()) && !f.Equal(usual.FieldByIndex(k.index)) || !isScalar(f.Type()) && f.Len() > 0) {
			p.addKey(joinKey(at, k.name), "means nothing without %s", needs)
		}
	}
	if program {
		p.checkProgram(at, u)
	}
	for i, era := range u.Eras {
		if era != "legacy" && era != "modern" {
			p.addKey(fmt.Sprintf("%s.eras[%d]", at, i), "must be legacy or modern")
		}
	}
	if u.SSEEndpoint != "" {
		p.checkTarget(at+".sse_endpoint", u.SSEEndpoint)
		if strings.ContainsAny(u.SSEEndpoint, "?#") {
			p.addKey(at+".sse_endpoint", "must have no query and no fragment: the query is the server's")
		}
		if u.Transport == TransportHTTP || u.Era == EraModern {
			p.addFor([]string{at + ".sse_endpoint", at + ".transport", at + ".era"}, "sse_endpoint is for servers of HTTP+SSE")
		}
	}
	if u.Transport == TransportSSE && u.Era == EraModern {
		p.addFor([]string{at + ".transport", at + ".era"}, "servers of HTTP+SSE (transport: sse) are legacy")
	}
}

// checkProgram checks how a process is started. The gateway finds out at run time whether the
// program and the folder exist.
func (p *problems) checkProgram(at string, u *Upstream) {
	const nul = "holds a NUL character, which no program can be given"
	for i, arg := range u.Args {
		if strings.ContainsRune(arg, 0) {
			p.add(fmt.Sprintf("%s.args[%d]", at, i), nul)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(u.Env)) {
		switch {
		case name == nameless && u.Env[name] == inherit && len(u.Env) == 1:
		case name == "" || strings.ContainsAny(name, "=\x00"):
			p.addKey(joinKey(at+".env", name), "%q is not the name of a variable", clipText(name))
		case strings.ContainsRune(u.Env[name], 0):
			p.add(joinKey(at+".env", name), nul)
		}
	}
	if strings.ContainsRune(u.Command, 0) {
		p.add(at+".command", nul)
	}
	if name, _, more := strings.Cut(u.Command, " "); more && !strings.Contains(name, "/") { // a path may have spaces
		p.add(at+".command", "the program alone: what follows it belongs in args, as a list")
	}
	if strings.ContainsRune(u.Cwd, 0) {
		p.add(at+".cwd", nul)
	}
}

// checkTarget checks the URL of a server.
func (p *problems) checkTarget(at, raw string) {
	p.checkURL(at, raw, "must begin with http:// or https://", "credentials do not belong in the URL; use headers",
		func(u *url.URL) bool { return u.Scheme == "http" || u.Scheme == "https" })
}

// isItself is the mistake that notItself finds.
const isItself = "this is the gateway itself, which listens there: give the address of the server, or another listen"

// notItself refuses an upstream that is the gateway: each call would go round in it until it is full.
func (p *problems) notItself(at string, c *Config, u *Upstream) {
	target, err := url.Parse(u.URL)
	host, port, wrong := net.SplitHostPort(c.Listen)
	if u.URL == "" || err != nil || wrong != nil || port == "0" {
		return
	}
	to := target.Port()
	if to == "" {
		to = map[string]string{"http": "80", "https": "443"}[target.Scheme]
	}
	every := host == "" || host == "0.0.0.0" || host == "::"
	if to == port && (strings.EqualFold(target.Hostname(), host) || IsLoopback(target.Hostname()) && (every || IsLoopback(host))) {
		p.addFor([]string{at + ".url", "listen"}, isItself)
	}
}

// checkURL checks a URL. begin is the mistake of one that is not allowed. The message of net/url is
// dropped: it repeats parts of the URL, possibly a password.
func (p *problems) checkURL(at, raw, begin, credentials string, allowed func(*url.URL) bool) {
	if raw == "" {
		return // a missing one is reported elsewhere
	}
	u, err := url.Parse(raw)
	switch {
	case !strings.Contains(raw, "://"):
		p.add(at, "%s", begin)
	case err != nil:
		p.add(at, "not a URL")
	case !allowed(u):
		p.add(at, "%s", begin)
	case u.Hostname() == "":
		p.add(at, "the URL needs a host")
	case u.User != nil:
		p.add(at, "%s", credentials)
	case strings.Contains(raw, "#"):
		p.add(at, "the URL must not have a fragment (#)")
	}
}

// checkRules checks the tools of an upstream, except the values that a rule takes from the
// defaults.
func (p *problems) checkRules(at string, u *Upstream) {
	for i := range u.Tools {
		r, at := &u.Tools[i], fmt.Sprintf("%s[%d]", at, i)
		p.checkRule(at, r, u.Defaults)
		if !checkMatch(p, at+".match", r.Match) {
			continue
		}
		for j, earlier := range u.Tools[:i] {
			if earlier.Match != (Match{}) && earlier.Match.coversMatch(r.Match) {
				p.add(at+".match", "never applies: tools[%d] comes first and matches the same tools", j)
				break
			}
		}
	}
}

// leastUsefulTTL is the shortest ttl without a warning: agents poll a task each 15 s or less often,
// and repeat a failed poll for a while.
const leastUsefulTTL = time.Minute

// needsPath are programs that start others, which they look up in PATH.
var needsPath = []string{"npx", "npm", "node", "uvx", "uv", "pipx", "python", "python3", "bunx", "deno", "docker"}

// Warnings are valid settings that are likely to disappoint, a sentence each.
func (c *Config) Warnings() (all []string) {
	short := func(of string, t Tool) {
		if t.TTL < leastUsefulTTL {
			all = append(all, fmt.Sprintf("%s: ttl %v is under %v: a client that polls seldom finds its task gone, and takes its outcome for unknown", of, t.TTL, leastUsefulTTL))
		}
	}
	for _, u := range c.Upstreams {
		if _, has := u.Env["PATH"]; !has && u.Env[nameless] == "" && slices.Contains(needsPath, path.Base(u.Command)) {
			all = append(all, fmt.Sprintf("upstream %s: %s finds no other program without PATH, and has only what env gives it: env: inherit gives it the environment of the gateway", u.Name, u.Command))
		}
		all = append(all, c.repeatWarnings(u)...)
		short("upstream "+u.Name, u.Defaults)
		for _, rule := range u.Tools {
			if rule.TTL != u.Defaults.TTL {
				short("upstream "+u.Name+", tools "+rule.Match.String(), rule.Tool)
			}
		}
	}
	return all
}

// changing are headers that differ from request to request, in canonical form.
var changing = []string{"X-Request-Id", "X-Correlation-Id", "X-Amzn-Trace-Id", "X-Cloud-Trace-Context", "X-B3-Traceid", "X-B3-Spanid", "B3"}

// clientsWait is by when clients give up.
const clientsWait = time.Minute

// repeatWarnings say where repeat cannot work.
func (c *Config) repeatWarnings(u *Upstream) (all []string) {
	warn := func(of, format string, args ...any) {
		all = append(all, "upstream "+u.Name+of+": "+fmt.Sprintf(format, args...))
	}
	if !u.anyTool(func(t *Tool) bool { return t.Repeat != RepeatRun }) {
		return nil
	}
	if !c.AuthOf(u).Required() && len(c.Hosts()) > 0 {
		warn("", "repeat does nothing for clients of 2026-07-28, which have no session: nobody signs in, and by allowed_hosts or public_url clients of other machines come as well, so one cannot be told from another")
	}
	for _, name := range u.ForwardHeaders {
		if slices.Contains(changing, textproto.CanonicalMIMEHeaderKey(name)) {
			warn("", "repeat does nothing for clients that send %s: forward_headers passes it on, and it differs with each request, so no two calls are the same", name)
		}
	}
	joins := func(of string, t Tool) {
		switch handled := u.WithoutTasks == WithoutTasksHandle && u.WithoutTasksAfter != Auto && u.WithoutTasksAfter < clientsWait; {
		case t.Repeat != RepeatJoin:
		case t.Timeout < shim.LeastKept:
			warn(of, "repeat: join does nothing: timeout %v ends each call before the %v after which it would be kept", t.Timeout, shim.LeastKept)
		case handled && t.Tasks != TasksNever:
			warn(of, "repeat: join does nothing for clients without tasks: without_tasks_after %v makes a task of each slow call before its client gives up", u.WithoutTasksAfter)
		}
	}
	joins("", u.Defaults)
	for _, rule := range u.Tools {
		if rule.Repeat != u.Defaults.Repeat || rule.Timeout != u.Defaults.Timeout || rule.Tasks != u.Defaults.Tasks {
			joins(", tools "+rule.Match.String(), rule.Tool)
		}
	}
	return all
}
