package redisstore

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"taskgate/internal/redistest"
	"taskgate/shim"
)

// logText is a log that may be read while it is written.
type logText struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write implements io.Writer.
func (j *logText) Write(b []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.Write(b)
}

// count is how many lines have a text.
func (j *logText) count(text string) int {
	j.mu.Lock()
	defer j.mu.Unlock()
	n := 0
	for line := range strings.Lines(j.text.String()) {
		if strings.Contains(line, text) {
			n++
		}
	}
	return n
}

// logged are quick options with a log.
func logged() (Options, *logText) {
	j := &logText{}
	o := testOptions()
	o.RetryFor, o.Logger = 50*time.Millisecond, slog.New(slog.NewTextHandler(j, nil))
	return o, j
}

// refuses wants every operation that writes to be refused for a reason, and reading
// to work or not.
func refuses(t *testing.T, s *Store, task shim.Task, reads bool, reason string) {
	t.Helper()
	reading := map[string]bool{"get": true, "list": true, "batches": true, "append": true, "apply": true, "adopt": true}
	fresh := newTask()
	for name, op := range operations(task) {
		switch name {
		case "create":
			_, err := s.Create(t.Context(), fresh)
			is(t, err, shim.ErrUnavailable)
		case "ping", "beat":
			if err := op(t, s); !reads || !strings.Contains(reason, "OOM") {
				is(t, err, shim.ErrUnavailable)
			}
		default:
			if err := op(t, s); reads && reading[name] {
				must(t, err)
			} else {
				is(t, err, shim.ErrUnavailable)
			}
		}
	}
	_, err := s.Apply(t.Context(), task.ID, &held, shim.Change{Op: "end", To: shim.Completed})
	is(t, err, shim.ErrUnavailable)
	if !strings.Contains(err.Error(), reason) {
		t.Errorf("%v does not say %q", err, reason)
	}
}

// A store that is led to a replica says so, at its start and to every call that
// writes, and works as soon as the replica is a master.
func TestReadOnlyReplica(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	master := openTest(t, p.master.URL(), testOptions())
	o, log := logged()
	o.Prefix = master.keys.prefix
	task := create(t, master, newTask())
	eventually(t, "the replica has it", func() bool { return len(p.replica.Keys(o.Prefix+":*:t:*")) == 1 })
	s := openTest(t, p.replica.URL(), o)
	same(t, 1, log.count("redis is a read-only replica"))
	refuses(t, s, task, true, "redis is a read-only replica")
	next := watching(t, s.Watch(t.Context(), task.ID))
	p.replica.Promote()
	usable(t, s)
	cancels(t, s, task, next)
}

// A full Redis lets everything be read and nothing be written, whatever is begun; what
// a task has to say at its end is taken once there is room, and done once.
func TestFullRedisRefuses(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	o, _ := logged()
	s := openTest(t, redis.URL(), o)
	task := create(t, s, newTask(), content("[0]"))
	keys := len(redis.Keys("*"))
	redis.Do("config", "set", "maxmemory", "1")
	refuses(t, s, task, true, "OOM")
	_, err := s.Apply(t.Context(), task.ID, &held, shim.Change{
		Op: "end", To: shim.Completed, Tail: []shim.Batch{content("[1]")}, At: 1,
	})
	is(t, err, shim.ErrUnavailable)
	is(t, appendBatches(t.Context(), s, task.ID, 1, content("[1]")), shim.ErrUnavailable)
	unlisted := newTask()
	unlisted.ListKey = "" // no list refuses it first
	_, err = s.Create(t.Context(), unlisted)
	is(t, err, shim.ErrUnavailable)
	same(t, keys, len(redis.Keys("*")))
	same(t, []string{"[0]"}, batches(t, s, task.ID))
	redis.Do("config", "set", "maxmemory", "0")
	same(t, shim.Completed, end(t, s, task).Status) // the op was not noted without its change
	same(t, int64(2), read(t, s, task.ID, shim.Summary).Version)
}

// A Redis that cannot save what it has takes nothing more (MISCONF).
func TestDiskTrouble(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t, "--save", "3600 1000000")
	o, _ := logged()
	s := openTest(t, redis.URL(), o)
	task := create(t, s, newTask())
	// Nothing can be put where a directory with something in it is.
	must(t, os.MkdirAll(redis.Path("dump.rdb/in-the-way"), 0o700))
	redis.Do("bgsave")
	redis.WaitInfo("persistence", "rdb_bgsave_in_progress:0", "rdb_last_bgsave_status:err")
	refuses(t, s, task, true, "MISCONF")
	must(t, os.RemoveAll(redis.Path("dump.rdb")))
	redis.Do("bgsave")
	redis.WaitInfo("persistence", "rdb_bgsave_in_progress:0", "rdb_last_bgsave_status:ok")
	end(t, s, task)
}

// With min-replicas-to-write, a master that has lost its replicas takes nothing.
func TestTooFewReplicas(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	o, _ := logged()
	s := openTest(t, redis.URL(), o)
	task := create(t, s, newTask())
	redis.Do("config", "set", "min-replicas-to-write", "1")
	refuses(t, s, task, true, "NOREPLICAS")
	redis.Do("config", "set", "min-replicas-to-write", "0")
	end(t, s, task)
}

// A Redis that still reads its data does nothing yet; then everything is there.
func TestLoading(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t, "--appendonly", "no", "--save", "3600 1000000")
	o, _ := logged()
	s := openTest(t, redis.URL(), o)
	task := create(t, s, newTask())
	p := s.client.Pipeline()
	for i := range 3000 {
		noise := make([]byte, 1000)
		_, _ = rand.Read(noise) // what can be compressed is loaded in a few large steps
		p.Set(t.Context(), fmt.Sprint("filler", i), noise, 0)
	}
	_, err := p.Exec(t.Context())
	must(t, err)
	redis.Stop()
	// It sleeps so many µs for each key, a minute in all, and looks at its clients after so many bytes.
	redis.Relaunch("--key-load-delay", "20000", "--loading-process-events-interval-bytes", "1024")
	refuses(t, s, task, false, "LOADING")
	redis.Kill()
	redis.Restart()
	usable(t, s)
	same(t, task, read(t, s, task.ID, shim.Summary))
	end(t, s, task)
}

// A password that changes while the store works shuts it out as soon as it needs
// another connection, which the log says, and lets it in again when it is right.
func TestPasswordChanges(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t, "--user", "gate", "on", ">right-secret", "~*", "&*", "+@all")
	o, log := logged()
	s := openTest(t, "redis://gate:right-secret@"+redis.Addr, o)
	task := create(t, s, newTask())
	next := watching(t, s.Watch(t.Context(), task.ID))
	change := func(password string) {
		redis.Do("acl", "setuser", "gate", "resetpass", ">"+password)
		redis.Do("client", "kill", "user", "gate")
	}
	change("other-secret")
	refuses(t, s, task, false, "redis refuses this user")
	eventually(t, "the log says so", func() bool { return log.count("WRONGPASS") > 0 })
	change("right-secret")
	synced(next)
	usable(t, s)
	cancels(t, s, task, next)

	// And one that may no longer do what it did.
	redis.Do("acl", "setuser", "gate", "-@scripting")
	_, err := s.Create(t.Context(), newTask())
	is(t, err, shim.ErrUnavailable)
	if !strings.Contains(err.Error(), "redis refuses this user") || log.count("secret") > 0 {
		t.Errorf("%v; %s", err, log.text.String())
	}
}

// A user who may not subscribe is told so, once, and served by who reads.
func TestMayNotSubscribe(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	redis.Do("acl", "setuser", "gate", "on", "nopass", "~*", "resetchannels", "+@all")
	o, log := logged()
	s := openTest(t, "redis://gate:x@"+redis.Addr, o)
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	heard := make(chan shim.Event, 1)
	all.Go(func() {
		for e := range s.Watch(ctx, shim.NewID()) {
			heard <- e
			return
		}
	})
	eventually(t, "the log says so", func() bool { return log.count("NOPERM") > 0 })
	refused := commands(redis, "subscribe")
	eventually(t, "it tries again", func() bool { return rejected(redis, "subscribe") > refused+3 })
	same(t, 1, log.count("lost the subscription"))
	redis.Do("acl", "setuser", "gate", "allchannels")
	same(t, shim.Event{Synced: true}, receive(t, heard, "that it is subscribed"))
}

// rejected is how often a server has refused to begin a command.
func rejected(redis *redistest.Server, name string) int {
	for line := range strings.Lines(fmt.Sprint(redis.Do("info", "commandstats"))) {
		var calls, usec, rejected int
		var per float64
		format := "cmdstat_" + name + ":calls=%d,usec=%d,usec_per_call=%f,rejected_calls=%d"
		if n, _ := fmt.Sscanf(line, format, &calls, &usec, &per, &rejected); n == 4 {
			return rejected
		}
	}
	return 0
}

// A Redis without a connection to spare refuses new ones; those that are there go on.
func TestMaxClients(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	inside := openTest(t, redis.URL(), testOptions())
	task := create(t, inside, newTask())
	redis.Do("config", "set", "maxclients", "1")
	o, log := logged()
	o.Prefix = inside.keys.prefix
	outside := openTest(t, redis.URL(), o)
	same(t, 1, log.count("redis cannot be used yet"))
	// Whether the reason is read or only that the connection was closed is chance.
	_, err := outside.Get(t.Context(), task.ID, shim.Summary)
	is(t, err, shim.ErrUnavailable)
	same(t, task, read(t, inside, task.ID, shim.Summary))
	must(t, inside.client.ConfigSet(t.Context(), "maxclients", "100").Err())
	usable(t, outside)
	same(t, task, read(t, outside, task.ID, shim.Summary))
}

// A Redis that evicts since some time, or has come late, is warned of with the next
// connection that subscribes, and once.
func TestPolicyBecomesWrong(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	o, log := logged()
	s := openTest(t, redis.URL(), o)
	next := watching(t, s.Watch(t.Context(), shim.NewID()))
	redis.Do("config", "set", "maxmemory-policy", "allkeys-lru")
	for range 3 {
		asked := commands(redis, "config\\|get")
		redis.Do("client", "kill", "type", "pubsub")
		synced(next)
		eventually(t, "the policy is looked at", func() bool { return commands(redis, "config\\|get") > asked })
	}
	eventually(t, "the log says so", func() bool { return log.count("noeviction") == 1 })
}

// A Redis that runs, and that somebody lets evict, is warned of though its connections stay
// as they are.
func TestPolicyChanges(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	o, log := logged()
	o.policyCheck = 10 * time.Millisecond
	s := openTest(t, redis.URL(), o)
	watching(t, s.Watch(t.Context(), shim.NewID()))
	for i, policy := range []string{"allkeys-lru", "noeviction", "volatile-ttl"} {
		redis.Do("config", "set", "maxmemory-policy", policy)
		asked := commands(redis, "config\\|get")
		eventually(t, "the policy is looked at", func() bool { return commands(redis, "config\\|get") > asked+1 })
		eventually(t, "the log says so", func() bool { return log.count("noeviction") == (i+2)/2 })
	}
	same(t, 0, log.count("lost the subscription"))
	same(t, time.Minute, max(time.Minute, Options{}.withDefaults().policyCheck))
}

// A Redis that is full is no store that a gateway could be ready with, and says why. Of a
// cluster one full master is enough.
func TestPingOfAFullRedis(t *testing.T) {
	t.Parallel()
	masters := redistest.Cluster(t, 3)
	alone := redistest.Start(t)
	for name, c := range map[string]struct {
		url  string
		full *redistest.Server
	}{"alone": {alone.URL(), alone}, "cluster": {redistest.ClusterURL(masters), masters[1]}} {
		o, _ := logged()
		s := openTest(t, c.url, o)
		usable(t, s)
		c.full.Do("config", "set", "maxmemory", "1")
		if err := s.Ping(t.Context()); !errors.Is(err, shim.ErrUnavailable) || !strings.Contains(err.Error(), "redis is full") {
			t.Errorf("%s: %v", name, err)
		}
		c.full.Do("config", "set", "maxmemory", "0")
		must(t, s.Ping(t.Context()))
		if left := c.full.Keys("*nothing*"); len(left) > 0 {
			t.Errorf("%s: left %v", name, left)
		}
	}
}

// Scripts that Redis has forgotten are sent again, in the middle of everything.
func TestScriptsFlushed(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	s := openTest(t, redis.URL(), testOptions())
	ctx, stop := context.WithCancel(t.Context())
	var all sync.WaitGroup
	all.Go(func() {
		for ctx.Err() == nil {
			redis.Do("script", "flush")
		}
	})
	defer all.Wait()
	defer stop()
	var workers sync.WaitGroup
	for range 4 {
		workers.Go(func() {
			for range 50 {
				task, err := s.Create(ctx, newTask(), content("[0]"))
				if err == nil {
					err = appendBatches(ctx, s, task.ID, 1, content("[1]"))
				}
				if err == nil {
					task, err = s.Apply(ctx, task.ID, &held, shim.Change{Op: "end", To: shim.Completed})
				}
				if err != nil || task.Version != 2 || task.Position != 2 {
					t.Errorf("%+v %v", task, err)
				}
			}
		})
	}
	finish(t, &workers, "all is done")
}

// A Redis that does not answer is given up when the caller's time is over, not later,
// and its late answer is nobody else's.
func TestSlowRedis(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	s := openTest(t, redis.URL(), testOptions())
	tasks := []shim.Task{create(t, s, newTask()), create(t, s, newTask())}
	redis.Freeze()
	for name, op := range map[string]func(context.Context) error{
		"get":    func(ctx context.Context) error { _, err := s.Get(ctx, tasks[0].ID, shim.Summary); return err },
		"list":   func(ctx context.Context) error { _, _, err := s.List(ctx, "p:alice", "", 5); return err },
		"ping":   s.Ping,
		"create": func(ctx context.Context) error { _, err := s.Create(ctx, newTask()); return err },
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		err := op(ctx)
		is(t, err, shim.ErrUnavailable)
		if ctx.Err() == nil {
			t.Errorf("%s gave up before its time: %v", name, err)
		}
		cancel()
	}
	redis.Thaw()
	for range 20 {
		for _, task := range tasks {
			same(t, task, read(t, s, task.ID, shim.Summary))
		}
	}
}
