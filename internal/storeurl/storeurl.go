// Package storeurl parses the URL of a Redis. net/url takes only one host, and its errors repeat
// passwords; the errors of this package leave the URL out.
package storeurl

import (
	"cmp"
	"errors"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// The kinds of a deployment of Redis, as they stand in the scheme behind a plus sign; "" is one server.
const (
	Cluster  = "cluster"
	Sentinel = "sentinel"
)

// URL has the parts of a URL.
type URL struct {
	Scheme string   // redis, or rediss with TLS
	Kind   string   // "", Cluster or Sentinel
	User   string   // user and password as they are written, with the @ behind them; "" for none
	Addrs  []string // each as host:port
	Master string   // of Sentinel
	DB     string   // "" for the first one
	Query  string
}

var (
	errScheme   = errors.New("not a store: write file, file:FOLDER, embedded, redis://, redis+cluster:// or redis+sentinel://, or one of these with rediss for TLS")
	errUser     = errors.New("special characters in user and password of a URL are written as %XX")
	errHost     = errors.New("the URL needs a host, or hosts with commas between, each as name or name:port")
	errHosts    = errors.New("redis:// takes one host; several are redis+cluster:// or redis+sentinel://")
	errCluster  = errors.New("a cluster has no database to choose; the URL ends after the hosts")
	errMaster   = errors.New("a sentinel URL names the master after the hosts: redis+sentinel://h1:26379,h2:26379/mymaster/0")
	errDatabase = errors.New("the path of the URL must be a database number, such as /0")
)

// Parse reads a URL, and stays offline.
func Parse(raw string) (u URL, err error) {
	scheme, rest, ok := strings.Cut(raw, "://")
	kinds := []string{"redis", "redis+" + Cluster, "redis+" + Sentinel}
	if !ok || !slices.Contains(kinds, strings.Replace(scheme, "rediss", "redis", 1)) {
		return u, errScheme
	}
	u.Scheme, u.Kind, _ = strings.Cut(scheme, "+")
	rest, u.Query, _ = strings.Cut(rest, "?")
	at := strings.LastIndexByte(rest, '@') + 1
	u.User = rest[:at]
	if parsed, err := url.Parse("redis://" + u.User + "host"); err != nil || parsed.Host != "host" {
		return u, errUser
	}
	hosts, path, _ := strings.Cut(rest[at:], "/")
	u.DB = path
	switch {
	case u.Kind == "" && strings.Contains(hosts, ","):
		return u, errHosts
	case u.Kind == Cluster && strings.Trim(path, "/") != "":
		return u, errCluster
	case u.Kind == Cluster:
		u.DB = ""
	case u.Kind == Sentinel:
		if u.Master, u.DB, _ = strings.Cut(path, "/"); u.Master == "" {
			return u, errMaster
		}
	}
	if _, err := strconv.ParseUint(u.DB, 10, 16); u.DB != "" && err != nil {
		return u, errDatabase
	}
	for host := range strings.SplitSeq(hosts, ",") {
		parsed, err := url.Parse("redis://" + host)
		if err != nil || parsed.Hostname() == "" || parsed.Host != host {
			return u, errHost
		}
		if parsed.Port() == "" {
			host += ":" + cmp.Or(map[string]string{Sentinel: "26379"}[u.Kind], "6379")
		}
		_, port, err := net.SplitHostPort(host)
		if n, bad := strconv.ParseUint(port, 10, 16); err != nil || bad != nil || n == 0 {
			return u, errHost
		}
		u.Addrs = append(u.Addrs, host)
	}
	return u, nil
}
