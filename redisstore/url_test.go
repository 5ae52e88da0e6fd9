package redisstore

import (
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

func TestURL(t *testing.T) {
	t.Parallel()
	type want struct {
		addrs              string
		cluster, tls       bool
		master, user, pass string
		db                 int
		sentinel           [2]string
	}
	for url, w := range map[string]want{
		"redis://h":                    {addrs: "h:6379"},
		"redis://h:1/2":                {addrs: "h:1", db: 2},
		"redis://u:p%40:%2F@h:1/2":     {addrs: "h:1", db: 2, user: "u", pass: "p@:/"},
		"redis://:p@h":                 {addrs: "h:6379", pass: "p"},
		"redis://[::1]:7":              {addrs: "[::1]:7"},
		"redis://[::1]":                {addrs: "[::1]:6379"},
		"rediss://h:1":                 {addrs: "h:1", tls: true},
		"redis+cluster://h1:1":         {addrs: "h1:1", cluster: true},
		"redis+cluster://h1,h2:2,h3/":  {addrs: "h1:6379,h2:2,h3:6379", cluster: true},
		"rediss+cluster://u:p@a:1,b:2": {addrs: "a:1,b:2", cluster: true, tls: true, user: "u", pass: "p"},
		"redis+sentinel://a,b:2/mymaster/3?sentinel_username=su&sentinel_password=s%26p": {
			addrs: "a:26379,b:2", master: "mymaster", db: 3, sentinel: [2]string{"su", "s&p"},
		},
		"redis+sentinel://u:p@a:1/m":    {addrs: "a:1", master: "m", user: "u", pass: "p"},
		"rediss+sentinel://a:1,[::2]/m": {addrs: "a:1,[::2]:26379", master: "m", tls: true},
	} {
		got, err := parseURL(url)
		if err != nil {
			t.Errorf("%s: %v", url, err)
			continue
		}
		b := got.base
		g := want{strings.Join(got.addrs, ","), got.cluster, b.TLSConfig != nil, got.master, b.Username, b.Password, b.DB, got.sentinel}
		if g != w {
			t.Errorf("%s:\n got %+v\nwant %+v", url, g, w)
		}
	}
}

// The errors name what is wrong and never the password.
func TestBadURLs(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]string{
		"redis+sentinel://h1/m?a=%zz":    "bad query",
		"redis://h?nonsense=1":           "nonsense",
		"redis://u:s3cret%zz@h":          "%XX",
		"redis://u:s3cret#@h:1":          "",
		"redis://u:s3cret/@h:x":          "",
		"redis://u:s3cret@h:99999":       "port",
		"redis+cluster://u:s3cret@h:1:2": "",
		"redis://u:s3cret@h?pool_size=x": "pool_size",
	} {
		_, err := parseURL(url)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: %v", url, err)
		}
		if _, err := Open(t.Context(), url, testOptions()); err == nil {
			t.Errorf("%s: opened", url)
		}
	}
	o := testOptions()
	o.Prefix = "{tg}"
	if _, err := Open(t.Context(), "embedded", o); err == nil {
		t.Error("a prefix with braces would put everything in one slot")
	}
}

// The client that a URL makes never repeats by itself, and obeys its context.
func TestClientOptions(t *testing.T) {
	t.Parallel()
	make := func(url string, o Options) redis.UniversalClient {
		got, err := parseURL(url)
		must(t, err)
		c := got.newClient(o)
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	single := make("redis://h?pool_size=7&read_timeout=3s", Options{WriteTimeout: 4 * time.Second}).(*redis.Client).Options()
	same(t, 0, single.MaxRetries) // what go-redis makes of -1
	same(t, true, single.ContextTimeoutEnabled)
	same(t, 7, single.PoolSize)
	same(t, 3*time.Second, single.ReadTimeout)
	same(t, 4*time.Second, single.WriteTimeout)
	same(t, 10*time.Second, make("redis://h", Options{}).(*redis.Client).Options().ReadTimeout)
	same(t, 9, make("redis://h?pool_size=7", Options{PoolSize: 9}).(*redis.Client).Options().PoolSize)
	cluster := make("redis+cluster://h?pool_size=7", Options{}).(*redis.ClusterClient).Options()
	same(t, true, cluster.ContextTimeoutEnabled)
	sentinel := make("redis+sentinel://h/m/5", Options{}).(*redis.Client).Options()
	same(t, 5, sentinel.DB)
}
