// Package redisstore remembers: it is the shim.Store over Redis. Any number of replicas share one
// Redis, Redis Cluster or Sentinel; the embedded default is a miniredis in the process.
//
// A task is one hash and two lists in one slot. Each change of a task is one Lua script, so readers
// see the state before it or after it. The files in lua/ say what a script decides, keys.go says
// which key holds what, and docs/operations.md tells an operator about both. The truth is in the
// keys: pub/sub only wakes those who wait (watch.go).
//
// Every operation may be repeated without harm, so an operation survives a lost reply: doRepeated
// repeats for a moment what failed for want of Redis, and then returns shim.ErrUnavailable.
package redisstore

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"taskgate/internal/metrics"
	"taskgate/internal/patience"
	"taskgate/internal/work"
	"taskgate/redisstore/journal"
	"taskgate/shim"

	"github.com/redis/go-redis/v9"
)

// Options tune a Store. The zero value is a good default.
type Options struct {
	// Prefix begins every key and channel; "tg" if empty. Gateways that share a Redis and have
	// separate tasks need different prefixes.
	Prefix string
	// WaitReplicas is how many Redis replicas must have received a new task, or the end of one,
	// before it counts as stored.
	WaitReplicas int
	// WaitTimeout is how long that may take; 1s if zero.
	WaitTimeout time.Duration
	// Metrics measures each operation; nil measures nothing.
	Metrics *metrics.Metrics
	// Logger hears of outages and of a Redis that may lose data; slog.Default() if nil.
	Logger *slog.Logger

	// DialTimeout, ReadTimeout and WriteTimeout bound one exchange with Redis; 5s, 10s and 10s if
	// zero. A result of many MB has to fit into one.
	DialTimeout, ReadTimeout, WriteTimeout time.Duration
	// TLS says how to connect where the URL asks for TLS; nil means the authorities of the system.
	// Where it has an empty ServerName, each node must have a certificate for its own host.
	TLS *tls.Config
	// PoolSize bounds the connections to one Redis node; 10 per CPU if zero.
	PoolSize int
	// RetryFor is how long an operation is repeated while Redis is away; 1s if zero.
	RetryFor time.Duration
	// AwayAfter is how long every command must have failed before Redis counts as away, so that
	// requests fail at once; RetryFor if zero.
	AwayAfter time.Duration
	// ProbeInterval is how often the subscription is tested; 5s if zero.
	ProbeInterval time.Duration
	// Dialer replaces the network, for tests.
	Dialer func(ctx context.Context, network, addr string) (net.Conn, error)
	// Folder replaces the folder of a store "file:FOLDER", for tests.
	Folder journal.Folder
	// MemoryLimit is that of the process, in bytes; 0 for none. A folder whose tasks take more than half of it
	// is refused.
	MemoryLimit int64
	// ClockTTL lets keys of the embedded store expire exactly on time. Every access then costs time
	// that grows with the number of keys. It is for tests in a synctest bubble.
	ClockTTL bool

	// slack is added to every expiry: how much too early the store may count time.
	slack time.Duration
	// tick is how often the embedded store counts time.
	tick time.Duration
	// recorder makes the embedded store durable; nil for none.
	recorder *recorder
	// journal holds the options of its journal.
	journal journal.Options
	// policyCheck is how often the maxmemory-policy is looked at.
	policyCheck time.Duration
}

// withDefaults fills in the options that are zero.
func (o Options) withDefaults() Options {
	o.Prefix = cmp.Or(o.Prefix, "tg")
	o.WaitTimeout = cmp.Or(o.WaitTimeout, time.Second)
	o.RetryFor = cmp.Or(o.RetryFor, time.Second)
	o.AwayAfter = cmp.Or(o.AwayAfter, o.RetryFor)
	o.ProbeInterval = cmp.Or(o.ProbeInterval, 5*time.Second)
	o.tick = cmp.Or(o.tick, time.Second)
	o.policyCheck = cmp.Or(o.policyCheck, 30*time.Second)
	o.Logger = cmp.Or(o.Logger, slog.Default())
	return o
}

// Store is a shim.Store over Redis. It is safe for concurrent use.
type Store struct {
	client   redis.UniversalClient
	beats    redis.UniversalClient // for heartbeats alone, which so have a free connection at all times
	keys     keys
	addrs    []string
	begins   []string // the prefixes of ids: the tasks of each are in one set
	opts     Options
	log      *slog.Logger
	hub      *hub
	reads    *pipeliner // of tasks, and of what they streamed
	writes   *pipeliner // small ones of the runners of tasks
	pulses   *pulses
	orphans  orphanage
	jumps    clockJumps
	embedded *embedded              // nil over a real Redis
	policy   atomic.Pointer[string] // the maxmemory-policy last seen

	unknown unknownErrors

	skippedMu sync.Mutex
	skipped   map[shim.ID]struct{} // records that cannot be read and were logged
}

var _ shim.Store = (*Store)(nil)

// Open makes a Store from a URL:
//
//	embedded                                          in the process, lost with it
//	file:/path                                        the same, and durable in a folder
//	redis://[user:password@]host:6379[/0]             one Redis; rediss:// with TLS
//	redis+cluster://[user:password@]h1:6379,h2:6379   Redis Cluster
//	redis+sentinel://[user:password@]h1:26379,h2:26379/mymaster[/0]
//
// (rediss+cluster and rediss+sentinel with TLS). Connection options of go-redis may follow as a
// query, as in ?pool_size=50&read_timeout=5s; for Sentinel also sentinel_username and
// sentinel_password.
//
// Open fails only if the URL or the options make no sense. It succeeds while Redis is down, so that
// the gateway can start first; Ping tells whether Redis answers.
func Open(ctx context.Context, url string, opts Options) (*Store, error) {
	opts = opts.withDefaults()
	if strings.ContainsAny(opts.Prefix, "{}") {
		return nil, errors.New("redis prefix: braces would change the cluster slot of keys")
	}
	if url == "embedded" {
		return openEmbedded("", opts)
	}
	if path, ok := strings.CutPrefix(url, "file:"); ok {
		if path == "" {
			return nil, errors.New("file: needs the path of a folder")
		}
		return openEmbedded(path, opts)
	}
	conn, err := parseURL(url)
	if err != nil {
		return nil, err
	}
	s := newStore(conn, opts)
	s.inspectRedis(ctx)
	return s, nil
}

// openEmbedded starts a miniredis and a Store over it, durable in a folder if path names one.
func openEmbedded(path string, opts Options) (*Store, error) {
	if opts.WaitReplicas > 0 {
		return nil, errors.New("wait_replicas needs a Redis with replicas, not a store in the process")
	}
	e, err := startEmbedded(path, opts)
	if err != nil {
		return nil, err
	}
	s := e.openStore(opts)
	s.embedded = e
	return s, nil
}

// beatConns bounds the connections that heartbeats have to one Redis node. A process has one
// heartbeat, which uses one connection, and a second one if the first is dead.
const beatConns = 10

func newStore(t target, opts Options) *Store {
	own := opts
	own.PoolSize = beatConns
	client := t.newClient(opts)
	s := &Store{client: client, beats: t.newClient(own), addrs: t.addrs, keys: keys{prefix: opts.Prefix}, begins: digits[:], opts: opts, log: opts.Logger, skipped: make(map[shim.ID]struct{})}
	if _, s.keys.cluster = client.(*redis.ClusterClient); s.keys.cluster {
		s.begins = shards[:]
	}
	if opts.recorder != nil {
		client.AddHook(opts.recorder) // heartbeats go unrecorded
	}
	s.hub = newHub(client, s.log, s.keys, opts.ProbeInterval)
	s.hub.looks, s.hub.lookEvery = s.checkPolicy, opts.policyCheck
	s.pulses = newPulses(opts.AwayAfter, opts.Logger)
	one := s.pulses.watchClient(client)
	s.pulses.watchClient(s.beats) // a heartbeat finds an outage before a request has to wait
	s.reads, s.writes = newPipeliner(client, one, maxReads), newPipeliner(client, one, maxWrites)
	return s
}

// Kept returns what a store in a folder had of ended tasks when it was opened, each with the owner in its share.
func (s *Store) Kept() []shim.KeptTask {
	if s.opts.recorder == nil {
		return nil
	}
	return s.opts.recorder.kept
}

// removedAfter is how long a folder has to be missing before it counts as removed: it may have been moved away, and come
// back.
const removedAfter = 10 * time.Second

// AwaitRemoval returns why a store in a folder can keep nothing any more: the folder was removed. It returns nil once ctx
// ends, and at once for any other store.
func (s *Store) AwaitRemoval(ctx context.Context) error {
	if s.opts.recorder == nil {
		return nil
	}
	return s.opts.recorder.journal.AwaitRemoval(ctx, removedAfter)
}

// Ping asks Redis, on each master of a cluster, whether it would take a write. A Redis that answers
// and refuses writes counts as unavailable: a read-only replica, one that cannot write to its disk,
// or one that is full.
func (s *Store) Ping(ctx context.Context) error {
	return s.doRepeated(ctx, "ping", s.pingOnce)
}

// pingOnce makes one attempt at Ping. It replaces keys that never exist: that leaves the data as it
// is, and Redis refuses it where it refuses writes or is full. In a cluster there is one in each
// shard, and so at each master that has tasks.
func (s *Store) pingOnce(ctx context.Context) error {
	tags := shards[:1]
	if s.keys.cluster {
		tags = shards[:]
	}
	_, err := s.client.Pipelined(ctx, func(p redis.Pipeliner) error {
		for _, tag := range tags {
			p.SetXX(ctx, s.keys.nothing(tag), "", 0)
		}
		return nil
	})
	return err
}

// Close ends all watches and closes all connections. The stored data stays, except in the embedded
// store.
func (s *Store) Close() error {
	s.hub.endWatches()
	s.pulses.endProbes()
	err := errors.Join(s.client.Close(), s.beats.Close())
	s.reads.awaitPipelines()
	s.writes.awaitPipelines()
	if s.embedded != nil {
		err = errors.Join(err, s.embedded.stopServer())
	}
	return err
}

// inspectRedis warns of a Redis that is unusable now, and of one that would delete tasks when it is
// full.
func (s *Store) inspectRedis(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	if err := s.pingOnce(ctx); err != nil {
		s.log.WarnContext(ctx, "redis cannot be used yet", "err", wrapError("ping", err).Error())
		return
	}
	s.checkPolicy(ctx)
}

// checkPolicy warns once of a Redis that would delete tasks when it is full, and again when the
// policy has changed to another such one: a Redis may be replaced, or reconfigured while it runs.
// Where CONFIG is forbidden, checkPolicy learns nothing.
func (s *Store) checkPolicy(ctx context.Context) {
	if s.embedded != nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	var mu sync.Mutex
	var found string
	look := func(ctx context.Context, m redis.Cmdable) error {
		got, err := m.ConfigGet(ctx, maxmemoryPolicy).Result()
		mu.Lock()
		defer mu.Unlock()
		if p := got[maxmemoryPolicy]; p != "" && (p != noEviction || found == "") {
			found = p
		}
		return err
	}
	if c, ok := s.client.(*redis.ClusterClient); ok {
		_ = c.ForEachMaster(ctx, func(ctx context.Context, m *redis.Client) error { return look(ctx, m) })
	} else {
		_ = look(ctx, s.client)
	}
	if found == "" {
		return
	}
	if before := s.policy.Swap(&found); found != noEviction && (before == nil || *before != found) {
		s.log.WarnContext(ctx, "redis may evict tasks when it is full; set maxmemory-policy noeviction", maxmemoryPolicy, found)
	}
}

// The name of the setting that says what Redis does when it is full, and the only value that is
// safe.
const (
	maxmemoryPolicy = "maxmemory-policy"
	noEviction      = "noeviction"
)

// doRepeated runs an operation and, while Redis is away, runs it again until RetryFor or ctx is
// over. Only the operations of this package are safe to repeat (design.md 0.12).
//
// While the slot of its keys moves to another node of a cluster, it runs the operation until the
// deadline of ctx: a move may take longer than RetryFor, and ends by itself. A caller without a
// deadline gets the error after RetryFor, as for any other failure. An adoption gets it then too:
// it leaves such tasks out and goes on with others.
//
// The patience of a request bounds the operation, which fails at once where Redis is known to be
// away (pulse.go).
func (s *Store) doRepeated(ctx context.Context, op string, f func(context.Context) error) (err error) {
	ctx, done := patience.Use(ctx)
	begun := time.Now()
	defer func() {
		away := errors.Is(err, shim.ErrUnavailable)
		done(!away)
		s.opts.Metrics.Stored(ctx, op, time.Since(begun), away && !errors.Is(err, context.Canceled))
	}()
	give := begun.Add(s.opts.RetryFor)
	until, bounded := ctx.Deadline()
	refused := true // every attempt so far
	for wait := firstBackoff; ; wait = min(2*wait, maxBackoff) {
		err := f(ctx)
		if err == nil {
			return nil
		}
		refused = refused && isRefused(err)
		s.unknown.logError(s.log, op, err)
		pause := wait/2 + rand.N(wait)
		if !isAnswer(err) && !errors.Is(err, context.Canceled) {
			reroute(ctx, s.client)
		}
		last := give
		if bounded && op != opAdopt && hasPrefix(err, moving...) {
			last = until
		}
		if !isTransient(err) || time.Now().Add(pause).After(last) || work.Pause(ctx, pause) != nil {
			if err = wrapError(op, err); refused {
				err = fmt.Errorf("%w: %w", shim.ErrRefusedWrite, err)
			}
			return err
		}
	}
}

// Watch implements shim.Store.
func (s *Store) Watch(ctx context.Context, ids ...shim.ID) iter.Seq2[shim.Event, error] {
	var channels []string
	for _, id := range ids {
		if _, err := shim.ParseID(string(id)); err == nil {
			channels = append(channels, s.keys.events(id))
		}
	}
	slices.Sort(channels)
	return s.hub.watchChannels(ctx, slices.Compact(channels))
}

// Inbox implements shim.Store. A replica has an inbox in every shard, so that the message of a
// script is in the slot of the task that it changes.
func (s *Store) Inbox(ctx context.Context, r shim.Replica) iter.Seq2[shim.Event, error] {
	channels := make([]string, len(shards), len(shards)+2)
	for i, tag := range shards {
		channels[i] = s.keys.inbox(tag, r)
	}
	channels = append(channels, s.keys.goodbyes(), s.keys.repeatNews())
	return s.hub.watchChannels(ctx, channels)
}
