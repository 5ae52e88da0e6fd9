package redisstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"taskgate/internal/redistest"
	"taskgate/shim"
)

// commands is how often a server has executed a command.
func commands(redis *redistest.Server, name string) int {
	m := regexp.MustCompile(`cmdstat_` + name + `:calls=(\d+)`).FindStringSubmatch(fmt.Sprint(redis.Do("info", "commandstats")))
	if m == nil {
		return 0
	}
	n, _ := strconv.Atoi(m[1])
	return n
}

// Whatever Redis says in place of an answer is an outage for who asked, also what nobody here knows. Only a
// refusal says that nothing was written.
func TestErrorsOfRedis(t *testing.T) {
	t.Parallel()
	o := testOptions()
	o.RetryFor = time.Millisecond
	s := openTest(t, "embedded", o)
	const unknown = "ERR something is wrong with this command"
	for _, text := range []string{
		"LOADING Redis is loading the dataset in memory", "READONLY You can't write against a read only replica.",
		"MASTERDOWN Link with MASTER is down", "CLUSTERDOWN The cluster is down", "TRYAGAIN Multiple keys request",
		"OOM command not allowed when used memory > 'maxmemory'.", "MISCONF Redis is configured to save RDB snapshots",
		"NOREPLICAS Not enough good replicas to write.", "BUSY Redis is busy running a script", "NOAUTH Authentication required.",
		"ERR max number of clients reached", unknown,
	} {
		s.embedded.server.SetError(text)
		for name, op := range operations(newTask()) {
			if err := op(t, s); name != "ping" {
				is(t, err, shim.ErrUnavailable)
				same(t, text != unknown, errors.Is(err, shim.ErrRefusedWrite))
			}
		}
	}
	s.embedded.server.SetError("")
	_, err := s.Get(t.Context(), shim.NewID(), shim.Summary)
	is(t, err, shim.ErrNotFound)
}

// A context that ends is an error of the caller's making, but whether the write
// took place is as unknown.
func TestEndedContext(t *testing.T) {
	t.Parallel()
	s := openTest(t, "embedded", testOptions())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := s.Create(ctx, newTask())
	is(t, err, shim.ErrUnavailable)
	is(t, err, context.Canceled)
}

// Credentials that are wrong are told as such, and not told.
func TestWrongCredentials(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t, "--requirepass", "right-secret", "--user", "limited", "on", ">lim-secret", "~*", "&*", "+ping")
	good := openTest(t, "redis://:right-secret@"+redis.Addr, testOptions())
	must(t, good.Ping(t.Context()))
	for _, user := range []string{":wrong-secret@", "", "limited:lim-secret@", "nobody:wrong-secret@"} {
		o := testOptions()
		var log bytes.Buffer
		o.Logger = slog.New(slog.NewTextHandler(&log, nil))
		s := openTest(t, "redis://"+user+redis.Addr, o)
		_, err := s.Get(t.Context(), shim.NewID(), shim.Summary)
		is(t, err, shim.ErrUnavailable)
		if !strings.Contains(err.Error(), "refuses this user") || strings.Contains(err.Error()+log.String(), "secret") {
			t.Errorf("%q: %v; %s", user, err, log.String())
		}
	}
}

// A Redis that evicts is warned of.
func TestPolicyWarning(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	warned := func() string {
		o := testOptions()
		var log bytes.Buffer
		o.Logger = slog.New(slog.NewTextHandler(&log, nil))
		eventually(t, "redis is looked at in time", func() bool {
			log.Reset()
			openTest(t, redis.URL(), o)
			return !strings.Contains(log.String(), "cannot be used yet")
		})
		return log.String()
	}
	same(t, "", warned())
	redis.Do("config", "set", "maxmemory-policy", "allkeys-lru")
	if got := warned(); !strings.Contains(got, "noeviction") {
		t.Errorf("logged %q", got)
	}
	redis.Do("acl", "setuser", "default", "-config")
	same(t, "", warned())
}

// In a cluster, WAIT goes to the master of the slot.
func TestWaitReplicasCluster(t *testing.T) {
	t.Parallel()
	masters := redistest.Cluster(t, 3)
	o := testOptions()
	o.WaitReplicas, o.WaitTimeout = 1, time.Millisecond
	s := openTest(t, redistest.ClusterURL(masters), o)
	must(t, s.Ping(t.Context()))
	for range 20 {
		_, err := s.Create(t.Context(), newTask())
		is(t, err, ErrNotReplicated)
	}
	keys, waits := 0, 0
	for _, m := range masters {
		n := len(m.Keys(o.Prefix + ":*:t:*"))
		if n != commands(m, "wait") {
			t.Errorf("%s has %d tasks and waited %d times", m.Addr, n, commands(m, "wait"))
		}
		keys, waits = keys+n, waits+commands(m, "wait")
	}
	same(t, 20, keys)
	same(t, 20, waits)
}

// The ACL user in docs/operations.md may do what a store does, and no more than that.
func TestLeastPrivilege(t *testing.T) {
	t.Parallel()
	doc, err := os.ReadFile("../docs/operations.md")
	must(t, err)
	user := regexp.MustCompile(`(?m)^user (taskgate .*)$`).FindStringSubmatch(string(doc))
	if user == nil {
		t.Fatal("docs/operations.md shows no ACL user")
	}
	redis := redistest.Start(t)
	line := []any{"acl", "setuser"}
	for _, word := range strings.Fields(user[1]) {
		line = append(line, word)
	}
	redis.Do(line...)
	o := testOptions()
	log := &logText{}
	o.Prefix, o.Logger, o.ProbeInterval = "tg", slog.New(slog.NewTextHandler(log, nil)), 20*time.Millisecond
	s := openTest(t, "redis://taskgate:secret@"+redis.Addr, o)
	s.hub.patience = limit // a probe that is late is none that is refused
	task := create(t, s, newTask())
	next := watching(t, s.Watch(t.Context(), task.ID))
	for name, op := range operations(task) {
		if err := op(t, s); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	hears(t, s, next, task.ID, end(t, s, task).Version)
	probes := commands(redis, "publish") // there is no next one before the last is heard
	eventually(t, "probes", func() bool { return commands(redis, "publish") > probes+2 })
	same(t, 0, log.count(""))
	o.Prefix = "other"
	_, err = openTest(t, "redis://taskgate:secret@"+redis.Addr, o).Create(t.Context(), newTask())
	is(t, err, shim.ErrUnavailable)
}
