package redisstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"taskgate/internal/storeurl"
)

// target is the Redis that a URL names.
type target struct {
	addrs    []string
	cluster  bool
	master   string // of Sentinel
	base     *redis.Options
	sentinel [2]string // user and password at the sentinels
}

// parseURL reads the URL of a store. Its errors leave out the URL, which may contain a password.
func parseURL(raw string) (target, error) {
	u, err := storeurl.Parse(raw)
	if err != nil {
		return target{}, fmt.Errorf("store URL: %w", err)
	}
	t := target{addrs: u.Addrs, cluster: u.Kind == storeurl.Cluster, master: u.Master}
	if u.Kind == storeurl.Sentinel {
		if u.Query, t.sentinel, err = sentinelQuery(u.Query); err != nil {
			return target{}, err
		}
	}
	t.base, err = redis.ParseURL(u.Scheme + "://" + u.User + t.addrs[0] + "/" + u.DB + "?" + u.Query)
	if _, bad := errors.AsType[*url.Error](err); bad {
		return target{}, errors.New("store URL: cannot be parsed") // the text of the error has the password
	}
	if err != nil {
		return target{}, fmt.Errorf("store URL: %w", err)
	}
	return t, nil
}

// sentinelQuery takes the credentials for the sentinels out of a query.
func sentinelQuery(query string) (rest string, creds [2]string, err error) {
	q, err := url.ParseQuery(query)
	if err != nil {
		return "", creds, errors.New("store URL: bad query")
	}
	creds = [2]string{q.Get("sentinel_username"), q.Get("sentinel_password")}
	q.Del("sentinel_username")
	q.Del("sentinel_password")
	return q.Encode(), creds, nil
}

var quietOnce sync.Once

// newClient makes the go-redis client for a target. The client sends each command once: doRepeated,
// in redisstore.go, repeats operations, and knows that this is harmless. For a client of one
// server, also behind Sentinel, MaxRetries ensures that. A cluster client heeds MaxRetries at each
// node only, and repeats by itself within MaxRedirects, which it needs to follow a slot to another
// node: the hook once prevents those repeats.
func (t target) newClient(opts Options) redis.UniversalClient {
	quietOnce.Do(func() { redis.SetLogger(debugLogger{}) })
	b := t.base
	secure := b.TLSConfig
	if secure != nil && opts.TLS != nil {
		secure = opts.TLS
	}
	u := &redis.UniversalOptions{
		Addrs: t.addrs, IsClusterMode: t.cluster, MasterName: t.master, DB: b.DB,
		Username: b.Username, Password: b.Password, TLSConfig: secure,
		SentinelUsername: t.sentinel[0], SentinelPassword: t.sentinel[1],
		ClientName: b.ClientName, Dialer: opts.Dialer,
		// RESP2 has everything that is needed here, and proxies and forks know it best.
		Protocol:              cmp.Or(b.Protocol, 2),
		MaxRetries:            -1,
		MaxRedirects:          2, // to the node of a slot, and from there to the node that the slot moves to
		DialTimeout:           cmp.Or(opts.DialTimeout, b.DialTimeout, 5*time.Second),
		DialerRetries:         1,
		ReadTimeout:           cmp.Or(opts.ReadTimeout, b.ReadTimeout, 10*time.Second),
		WriteTimeout:          cmp.Or(opts.WriteTimeout, b.WriteTimeout, 10*time.Second),
		ContextTimeoutEnabled: true,
		PoolFIFO:              b.PoolFIFO, PoolSize: cmp.Or(opts.PoolSize, b.PoolSize), PoolTimeout: b.PoolTimeout,
		PipelinePoolSize: cmp.Or(b.PipelinePoolSize, -1),
		MinIdleConns:     b.MinIdleConns, MaxIdleConns: b.MaxIdleConns, MaxActiveConns: b.MaxActiveConns,
		ConnMaxIdleTime: b.ConnMaxIdleTime, ConnMaxLifetime: b.ConnMaxLifetime,
		DisableIdentity:          true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
	c := redis.NewUniversalClient(u)
	if t.cluster {
		c.AddHook(once{})
	}
	return c
}

// once has a cluster client send each command once, across all redirections. The client only
// repeats commands that were certainly not executed: it tries a pipeline that got no connection
// twice more, and moves on from a node that has become a replica.
type once struct{}

// DialHook implements redis.Hook.
func (once) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook implements redis.Hook.
func (once) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error { return next(ctx, notRepeated{cmd}) }
}

// ProcessPipelineHook implements redis.Hook.
func (once) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		all := make([]redis.Cmder, len(cmds))
		for i, c := range cmds {
			all[i] = notRepeated{c}
		}
		return next(ctx, all)
	}
}

// notRepeated is a command that go-redis sends once.
type notRepeated struct{ redis.Cmder }

// NoRetry implements redis.Cmder.
func (notRepeated) NoRetry() bool { return true }

// debugLogger logs the messages of go-redis, which are about single connections, at level debug.
type debugLogger struct{}

// Printf implements the logger of go-redis.
func (debugLogger) Printf(ctx context.Context, format string, args ...any) {
	if slog.Default().Enabled(ctx, slog.LevelDebug) {
		slog.DebugContext(ctx, "redis client", "message", fmt.Sprintf(format, args...))
	}
}
