package config

import (
	"net/url"
	"strconv"
	"strings"
)

// storeForms are the kinds of store by the scheme of their URL. Each also has
// a form with TLS, whose scheme begins with rediss.
var storeForms = map[string]func(p *problems, hosts int, path string){
	"redis":          (*problems).checkSingle,
	"redis+cluster":  (*problems).checkCluster,
	"redis+sentinel": (*problems).checkSentinel,
}

// checkStore checks the store's URL as far as it can be without connecting. It is
// taken apart by hand because several hosts are no URL to net/url, and what
// net/url says about it is not passed on because that repeats passwords.
func (p *problems) checkStore(c *Config) {
	if c.OwnsStore() {
		if c.WaitReplicas > 0 {
			p.addFor([]string{"wait_replicas", "store"}, "only a Redis has replicas to wait for")
		}
		if path, onDisk := c.StoreFolder(); onDisk && path == "" {
			p.add("store", "file: needs the path of a folder")
		}
		return
	}
	scheme, rest, ok := strings.Cut(c.Store, "://")
	check := storeForms[strings.Replace(scheme, "rediss", "redis", 1)]
	if !ok || check == nil {
		p.add("store", "not a store: write file, file:PATH, embedded, redis://, redis+cluster:// or redis+sentinel://, or one of these with rediss for TLS")
		return
	}
	rest, _, _ = strings.Cut(rest, "?")
	at := strings.LastIndexByte(rest, '@') + 1
	if u, err := url.Parse("redis://" + rest[:at] + "host"); err != nil || u.Host != "host" {
		p.add("store", "special characters in user and password of a URL are written as %%XX")
		return
	}
	hosts, path, _ := strings.Cut(rest[at:], "/")
	check(p, p.storeHosts(strings.Split(hosts, ",")), path)
}

// storeHosts checks the hosts of a store and returns how many there are.
func (p *problems) storeHosts(hosts []string) int {
	for _, host := range hosts {
		u, err := url.Parse("redis://" + host)
		if err != nil || u.Hostname() == "" || !isPort(u.Port()) {
			p.add("store", "the URL needs a host, or hosts with commas between, each as name or name:port")
			break
		}
	}
	return len(hosts)
}

// isPort accepts a port that can be connected to, and none.
func isPort(port string) bool {
	n, err := strconv.ParseUint(port, 10, 16)
	return port == "" || err == nil && n > 0
}

func (p *problems) checkSingle(hosts int, path string) {
	if hosts > 1 {
		p.add("store", "redis:// takes one host; several are redis+cluster:// or redis+sentinel://")
	}
	p.checkDatabase(path)
}

func (p *problems) checkCluster(_ int, path string) {
	if strings.Trim(path, "/") != "" {
		p.add("store", "a cluster has no database to choose; the URL ends after the hosts")
	}
}

func (p *problems) checkSentinel(_ int, path string) {
	master, db, _ := strings.Cut(path, "/")
	if master == "" {
		p.add("store", "a sentinel URL names the master after the hosts: redis+sentinel://h1:26379,h2:26379/mymaster/0")
	}
	p.checkDatabase(db)
}

func (p *problems) checkDatabase(path string) {
	if _, err := strconv.ParseUint(path, 10, 16); path != "" && err != nil {
		p.add("store", "the path of the URL must be a database number, such as /0")
	}
}
