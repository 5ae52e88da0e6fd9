package config

import (
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"strings"

	"golang.org/x/net/http/httpguts"

	"taskgate/internal/storeurl"
)

// Validate reports every mistake of a configuration that was made by hand or changed after loading, as
// an [*Error] for each, which names a key instead of a line. [Load] and [Parse] have validated what
// they return.
func (c *Config) Validate() error {
	var list []*Error
	for _, p := range c.problems() {
		list = append(list, &Error{Path: p.paths[0], Message: p.message})
	}
	return asError(list)
}

// problems runs all checks. Their messages leave out values: a value may be a secret, or come from a
// variable that holds one by mistake.
func (c *Config) problems() []problem {
	var p problems
	p.checkFields("", c)
	p.checkListen("listen", c.Listen)
	p.checkAdmin(c)
	p.checkTLS(c)
	p.publicURL(c.PublicURL)
	p.checkAuth("auth", &c.Auth, c)
	p.stateKeys(c.StateKeys)
	p.checkStore(c)
	for i, origin := range c.AllowedOrigins {
		p.checkOrigin(fmt.Sprintf("allowed_origins[%d]", i), origin)
	}
	for i, host := range c.AllowedHosts {
		p.checkHost(fmt.Sprintf("allowed_hosts[%d]", i), host)
	}
	for i, name := range c.Baggage {
		if !httpguts.ValidHeaderFieldName(name) { // a token of RFC 9110 as well
			p.add(fmt.Sprintf("baggage[%d]", i), "not a baggage key")
		}
	}
	p.checkUpstreams(c)
	if least := 2 * c.LargestCall(); c.BytesInFlight(0) < least && c.MaxBody <= GiB {
		p.addFor([]string{"max_bytes_in_flight", "upstreams", "max_body"},
			"must be at least %d: twice max_body and the largest max_result together, and a little more", int64(least))
	}
	return p
}

func (p *problems) checkListen(path, addr string) {
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		p.add(path, "not an address: write host:port, such as 127.0.0.1:8080, :8080 or [::1]:8080")
		return
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		p.add(path, "the port must be a number from 0 to 65535")
	}
}

// checkAdmin checks the admin listener, and the keys for it, also without its address, since --admin
// may open it. It must differ from the public one: it is not for clients, and asks for no key.
func (p *problems) checkAdmin(c *Config) {
	p.checkAuth("admin_auth", &c.AdminAuth, c)
	if c.TraceURL != "" {
		p.traceURL(c)
	}
	if c.Admin == "" {
		return
	}
	p.checkListen("admin", c.Admin)
	if _, port, err := net.SplitHostPort(c.Admin); err == nil && port != "0" && c.Admin == c.Listen {
		p.addFor([]string{"admin", "listen"}, "this address is already that of listen; admin needs one of its own")
	}
}

// traceID stands in trace_url for the id of a trace.
const traceID = "{trace_id}"

// TraceAt is where a trace is shown; "" for nowhere.
func (c *Config) TraceAt(id string) string {
	if id == "" {
		return ""
	}
	return strings.ReplaceAll(c.TraceURL, traceID, id)
}

// traceURL checks an address that becomes a link on a page.
func (p *problems) traceURL(c *Config) {
	u, err := url.Parse(c.TraceAt("1"))
	switch {
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "":
		p.add("trace_url", "must begin with https:// or http:// and a host")
	case !strings.Contains(c.TraceURL, traceID):
		p.add("trace_url", "needs %s where the id of the trace belongs", traceID)
	}
}

// checkOrigin accepts what a browser may put into an Origin header, and refuses what looks like it but
// never matches.
func (p *problems) checkOrigin(path, origin string) {
	if origin == "*" || origin == "null" {
		p.add(path, "would let any page in; list the origins exactly")
		return
	}
	u, err := url.Parse(origin)
	switch {
	case err != nil || u.Scheme == "" || u.Host == "":
		p.add(path, "not an origin: write scheme://host or scheme://host:port")
	case u.Scheme+"://"+u.Host != origin:
		p.add(path, "an origin has nothing after the host and port, and is all lower case")
	case strings.ToLower(u.Host) != u.Host:
		p.add(path, "browsers send origins in lower case; this one would never match")
	case u.Scheme == "http" && u.Port() == "80", u.Scheme == "https" && u.Port() == "443":
		p.add(path, "browsers leave out the default port; this origin would never match")
	}
}

func (p *problems) checkHost(path, host string) {
	if _, err := netip.ParseAddr(host); err == nil {
		return
	}
	if host == "" || strings.ContainsAny(host, ":/ *@?#[]%") {
		p.add(path, "not a host: write a name or an IP address, without scheme, port and brackets")
	}
}

// checkStore checks the store as far as that is possible without a connection.
func (p *problems) checkStore(c *Config) {
	if !c.OwnsStore() {
		if _, err := storeurl.Parse(c.Store); err != nil {
			p.add("store", "%s", err)
		}
		return
	}
	if c.WaitReplicas > 0 {
		p.addFor([]string{"wait_replicas", "store"}, "only a Redis has replicas to wait for")
	}
	switch path, onDisk := c.StoreFolder(); {
	case onDisk && path == "":
		p.add("store", "file: needs the path of a folder")
	case strings.HasPrefix(path, "~"): // a shell does not expand it behind "file:"
		p.add("store", "the folder must not begin with ~, which is not replaced: write the whole path")
	}
}
