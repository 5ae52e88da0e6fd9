package redisstore_test

import (
	"context"
	"crypto/tls"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"

	"taskgate/internal/wiretest"
	"taskgate/redisstore"
)

// TestTLS: a Redis whose certificate only one's own authority knows, and which wants one of its
// clients, is reached with Options.TLS and not without, alone or as a cluster.
func TestTLS(t *testing.T) {
	a := wiretest.NewAuthority(t)
	redis := miniredis.NewMiniRedis()
	if err := redis.StartTLS(&tls.Config{Certificates: []tls.Certificate{a.Pair("redis")}, ClientCAs: a.Pool(), ClientAuth: tls.RequireAndVerifyClientCert}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(redis.Close)
	good := &tls.Config{RootCAs: a.Pool(), Certificates: []tls.Certificate{a.Pair("gateway")}}
	named := good.Clone()
	named.ServerName = "redis"
	misnamed := good.Clone()
	misnamed.ServerName = "other"
	for name, c := range map[string]struct {
		scheme string
		tls    *tls.Config
		ok     bool
	}{
		"with the files":    {"rediss", good, true},
		"by its name":       {"rediss", named, true},
		"a cluster":         {"rediss+cluster", named, true},
		"another name":      {"rediss", misnamed, false},
		"no certificate":    {"rediss", &tls.Config{RootCAs: a.Pool()}, false},
		"without the files": {"rediss", nil, false},
		"without TLS":       {"redis", good, false},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := redisstore.Open(t.Context(), c.scheme+"://"+redis.Addr(), redisstore.Options{
				TLS: c.tls, RetryFor: time.Millisecond, Logger: slog.New(slog.DiscardHandler),
			})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			ctx, stop := context.WithTimeout(t.Context(), 5*time.Second)
			defer stop()
			if err := s.Ping(ctx); c.ok != (err == nil) {
				t.Errorf("%v", err)
			} else if err != nil && strings.Contains(err.Error(), "redis:6379") {
				t.Errorf("another host: %v", err)
			}
		})
	}
}
