package redisstore

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"

	"taskgate/internal/work"
	"taskgate/redisstore/interpreter"
	"taskgate/redisstore/journal"
	"taskgate/shim"
)

// foldersShare is the part of the memory limit that tasks in a folder may take at the start.
const foldersShare = 2

// openRecorder loads the data of a folder into a miniredis, and records from then on.
func openRecorder(redis *miniredis.Miniredis, scripts *interpreter.Interpreter, path string, o Options) (r *recorder, err error) {
	r = &recorder{redis: redis, server: redis.Server(), scripts: scripts, keys: keys{prefix: o.Prefix}, log: o.Logger}
	// Keys expire only once all entries are read, because later entries show what was written to a key.
	start := time.Unix(0, 0)
	redis.SetTime(start)
	o.journal.Logger, o.journal.Folder = o.Logger, o.Folder
	r.asleep.records = make(map[string]*sleeper)
	r.journal, err = journal.Open(path, o.journal, r.loadEntry)
	if err != nil {
		return nil, err
	}
	if err = r.asleep.readEntries(o.MemoryLimit / foldersShare); err != nil {
		return nil, errors.Join(err, r.journal.Close())
	}
	redis.SetTime(time.Time{})
	redis.FastForward(time.Since(start))
	r.buryReplicas()
	r.kept = r.listKept()
	r.server.SetPreHook(r.beforeCommand)
	return r, nil
}

// loadEntry runs the command of an entry, or keeps the entry if it is about the record of a task or its pieces.
func (r *recorder) loadEntry(entry []byte, at journal.Place) error {
	words, err := splitLine(entry)
	if err != nil {
		return err
	}
	if _, known := recorded[string(words[0])]; !known {
		return fmt.Errorf("unknown command %q", words[0])
	}
	if len(words) > 1 && r.keys.isOfTask(string(words[1])) {
		r.asleep.keepEntry(entry, words, at)
		return nil
	}
	if reply := r.askEngine(nil, toLine(words)); strings.HasPrefix(reply, "-") {
		return errors.New(strings.TrimSpace(reply))
	}
	return nil
}

// buryReplicas enters all replicas that have tasks as gone: this process alone has the folder.
func (r *recorder) buryReplicas() {
	gone := fmt.Sprintf("%d 5000 %[1]d", time.Now().UnixMilli())
	for _, key := range r.redis.Keys() {
		_, replica, is := strings.Cut(key, "}:run:")
		if is && strings.HasPrefix(key, r.keys.prefix+":{") {
			r.redis.HSet(r.keys.replicas(), replica, gone)
		}
	}
}

// listKept lists the ended tasks that were loaded, with about what each takes.
func (r *recorder) listKept() (all []shim.KeptTask) {
	for key, s := range r.asleep.records {
		at, err := strconv.ParseInt(s.expires, 10, 64)
		if err != nil || !r.keys.isTask(key) { // only a task that has ended expires
			continue
		}
		one := shim.KeptTask{Until: time.UnixMilli(at), Bytes: s.bytes}
		for _, entry := range s.entries {
			words, _ := splitLine(entry) // it was checked when it was loaded
			for i := 2; i+1 < len(words) && string(words[0]) == "HSET"; i += 2 {
				if string(words[i]) == fieldOwner {
					one.Share.Owner = string(words[i+1])
				}
			}
		}
		if pieces := r.asleep.records[r.keys.batches(r.keys.idOf(key))]; pieces != nil {
			one.Bytes += pieces.bytes
		}
		all = append(all, one)
	}
	return all
}

// rewriteStep is about how many bytes a rewrite records at a time; between the steps others go on.
const rewriteStep = 1 << 20

// rewriteWhenDue rewrites the journal whenever that is due, until ctx ends.
func (r *recorder) rewriteWhenDue(ctx context.Context) {
	expired := time.NewTicker(time.Minute)
	defer expired.Stop()
	for {
		// The journal signals it after the write that makes it due.
		select {
		case <-r.journal.Due():
		case <-expired.C:
			r.asleep.expireSleepers()
			continue
		case <-ctx.Done():
			return
		}
		begin := time.Now()
		if err := r.rewriteJournal(ctx); err != nil && ctx.Err() == nil {
			r.log.WarnContext(ctx, "the files of the store were not made smaller", "err", err)
			continue
		}
		r.log.DebugContext(ctx, "the files of the store were made smaller", "took", time.Since(begin))
	}
}

// rewriteJournal records everything anew in a file of its own, key by key; between the steps others go on.
// Each key begins with its removal, which undoes earlier entries about it.
func (r *recorder) rewriteJournal(ctx context.Context) error {
	r.rewriting.Lock()
	defer r.rewriting.Unlock()
	if err := r.journal.Begin(); err != nil {
		return err
	}
	r.mu.Lock()
	all := append(r.redis.Keys(), r.asleep.sleepingKeys()...)
	r.journal.Switch()
	r.mu.Unlock()
	for len(all) > 0 {
		r.mu.Lock()
		r.unit = unit{}
		for len(all) > 0 && len(r.unit.entries) < rewriteStep {
			r.dumpKey(all[0])
			all = all[1:]
		}
		r.journal.Add(nil, r.unit.entries)
		r.mu.Unlock()
		for r.journal.Sync(ctx) != nil { // the journal repeats what failed
			if err := work.Pause(ctx, time.Second); err != nil {
				return err
			}
		}
	}
	return r.journal.End(ctx)
}

// dumpKey records the whole content of a key. r.mu is held.
func (r *recorder) dumpKey(key string) {
	if r.isVolatile(key) {
		return
	}
	u := &r.unit
	u.addLine("DEL", key)
	if s := r.asleep.findSleeper(key); s != nil && len(s.entries) == 1 {
		u.entries = journal.Encode(u.entries, s.entries[0])
		if s.expires != "" {
			u.addLine("PEXPIREAT", key, s.expires)
		}
		return
	}
	r.wakeRecord(nil, key)
	left := r.redis.TTL(key) // before its value, because it may expire meanwhile: a recorded value needs its expiry
	switch r.redis.Type(key) {
	case "string":
		u.addValue("SET", key, r.askWords("GET", key))
	case "hash":
		u.addValue("HSET", key, r.askWords("HGETALL", key))
	case "list":
		u.addValue("RPUSH", key, r.askWords("LRANGE", key, "0", "-1"))
	case "stream":
		entries, _ := r.redis.Stream(key) // empty if the key has expired
		for _, e := range entries {
			u.addLine(append([]string{"XADD", key, e.ID}, e.Values...)...)
		}
	case "zset":
		pairs := r.askWords("ZRANGE", key, "0", "-1", "WITHSCORES")
		for pair := range slices.Chunk(pairs, 2) {
			pair[0], pair[1] = pair[1], pair[0]
		}
		u.addValue("ZADD", key, pairs)
	}
	if left > 0 {
		u.addLine("PEXPIREAT", key, strconv.FormatInt(time.Now().Add(left).UnixMilli(), 10))
	}
}

// addValue records the value of a key, unless the key has just expired.
func (u *unit) addValue(cmd, key string, words []string) {
	if len(words) > 0 {
		u.addLine(append([]string{cmd, key}, words...)...)
	}
}

// askWords reads a value as a list of strings.
func (r *recorder) askWords(line ...string) (words []string) {
	reply, _ := server.ParseReply(bufio.NewReader(strings.NewReader(r.askEngine(nil, line)))) // miniredis wrote it
	list, many := reply.([]any)
	if !many {
		list = []any{reply}
	}
	for _, e := range list {
		if word, ok := e.(string); ok {
			words = append(words, word)
		}
	}
	return words
}
