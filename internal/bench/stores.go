package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"taskgate/internal/proc"
	"taskgate/internal/work"
)

// kinds of stores, in the order of the table.
const (
	inMemory = "embedded"
	inFolder = "file"
	inRedis  = "Redis, appendfsync always"
)

// overStore is a gateway over a store, and what was found there.
type overStore struct {
	kind, store, addr string
	process           *proc.Process
	redis             *proc.Process // nil for a store within the gateway
	plain             []sample
	made              map[int][]sample // by connections
}

// kept is what a start found of tasks that had ended.
type kept struct {
	tasks           int
	start           time.Duration
	resident, redis int64 // bytes
	files           int64 // bytes
}

// measureStores has calls made tasks over each store, and then a gateway started over many tasks
// in a folder. The folder and the files of Redis are on one disk.
func measureStores(ctx context.Context, s settings) (string, error) {
	if !s.wants("stores") {
		return "", nil
	}
	st, err := emptyStage()
	if err != nil {
		return "", err
	}
	defer st.close()
	starting, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if err := st.startServers(starting); err != nil {
		return "", err
	}
	redis, err := st.startRedis(starting, "--appendonly", "yes", "--appendfsync", "always")
	if err != nil {
		return "", err
	}
	all := []*overStore{
		{kind: inMemory, store: "embedded"}, {kind: inFolder, store: "file:" + filepath.Join(st.dir, "store")}, {kind: inRedis, store: "redis://" + st.redis + "/0"},
	}
	for _, o := range all {
		o.made = map[int][]sample{}
		if o.addr, err = proc.FreeAddr(); err != nil {
			return "", err
		}
		if o.process, err = st.startGateway(starting, s.taskgate, o.addr, o.store, "modern"); err != nil {
			return "", err
		}
	}
	all[2].redis = redis
	for round := range s.rounds {
		fmt.Fprintf(os.Stderr, "stores, round %d of %d\n", round+1, s.rounds)
		for i := range all {
			if err := all[(i+round)%len(all)].measure(ctx, s.length); err != nil {
				return "", err
			}
		}
	}
	fmt.Fprintf(os.Stderr, "%d tasks in a folder\n", s.kept)
	k, err := st.keep(ctx, s, all[1], all[2])
	if err != nil {
		return "", err
	}
	if k.redis, err = residentOf(redis.PID()); err != nil {
		return "", err
	}
	return storesTable(all) + keptTable(k), nil
}

// measure adds a sample for each number of connections.
func (o *overStore) measure(ctx context.Context, length time.Duration) error {
	plain, err := call(o.addr, "plain", false, answered).measure(parkedConns, length)
	if err != nil {
		return fmt.Errorf("%s: %w", o.kind, err)
	}
	o.plain = append(o.plain, plain)
	for _, conns := range manyConns {
		made := call(o.addr, "always", true, handled)
		made.process, made.beside = o.process, o.redis
		got, err := made.measure(conns, length)
		if err != nil {
			return fmt.Errorf("%s: %w\n%s", o.kind, err, o.process.Output())
		}
		o.made[conns] = append(o.made[conns], got)
		if err := work.Pause(ctx, 300*time.Millisecond); err != nil { // for work that goes on behind the answers
			return err
		}
	}
	return nil
}

// fill makes tasks with results of 1 kB.
func (o *overStore) fill(n int) error {
	fills := call(o.addr, toolKilobyte, true, handled)
	workers, hangUp, err := fills.dialWorkers(min(parkedConns, n))
	defer hangUp()
	if err != nil {
		return err
	}
	return fills.doTimes(workers, n)
}

// keep fills the folder and the Redis with as many tasks, kills the gateway over the folder, and
// starts it again.
func (st *stage) keep(ctx context.Context, s settings, folder, redis *overStore) (kept, error) {
	k := kept{tasks: s.kept}
	for _, o := range []*overStore{folder, redis} {
		if err := o.fill(s.kept); err != nil {
			return k, fmt.Errorf("%s: %w\n%s", o.kind, err, o.process.Output())
		}
	}
	if err := work.Pause(ctx, settled); err != nil {
		return k, err
	}
	folder.process.Kill()
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	begin := time.Now()
	p, err := st.startGateway(ctx, s.taskgate, folder.addr, folder.store, "modern")
	if err != nil {
		return k, err
	}
	k.start = time.Since(begin)
	if k.resident, err = residentOf(p.PID()); err != nil {
		return k, err
	}
	files, err := filepath.Glob(filepath.Join(st.dir, "store", "journal-*"))
	for _, name := range files {
		if info, err := os.Stat(name); err == nil { // a rewrite may have removed it
			k.files += info.Size()
		}
	}
	return k, err
}

// storesTable has the medians of the rounds. The processor time of a task is that of the gateway and of Redis.
func storesTable(all []*overStore) string {
	var b strings.Builder
	b.WriteString("\n### Made a task, by store\n\n| store | connections | requests/s | p50 | p99 | CPU | of Redis | plain calls/s |\n|---|---:|---:|---:|---:|---:|---:|---:|\n")
	for _, o := range all {
		for _, conns := range manyConns {
			plain := ""
			if conns == parkedConns {
				plain = fmt.Sprintf("%.0f", median(o.plain).rate)
			}
			got := median(o.made[conns])
			fmt.Fprintf(&b, "| %s | %d | %s | %.2f | %s |\n", o.kind, conns, got.withCPU(), got.rate/median(all[len(all)-1].made[conns]).rate, plain)
		}
	}
	return b.String()
}

// keptTable is one row.
func keptTable(k kept) string {
	return fmt.Sprintf("\n### Start over a folder\n\n| tasks | bytes each in the files | start | resident | resident in Redis |\n|---:|---:|---:|---:|---:|\n| %d | %d | %s | %d MB | %d MB |\n",
		k.tasks, k.files/int64(max(k.tasks, 1)), short(k.start), k.resident>>20, k.redis>>20)
}
