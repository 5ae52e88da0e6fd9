package redisstore

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
	"github.com/redis/go-redis/v9"

	"taskgate/redisstore/interpreter"
	"taskgate/redisstore/journal"
	"taskgate/shim"
)

// recorder makes a miniredis durable (design.md 0.9). It sees each command before that runs. For each command
// inside of a script that writes, it records one entry with the effect, in absolute times; all entries of a
// script are durable together. So a start replays neither scripts nor clocks. A command outside of a script
// is run as a script of one line.
//
// The answer to a command waits until everything about its keys is on disk, and so do the events of a script:
// nobody learns of a change that a crash would take back.
type recorder struct {
	redis   *miniredis.Miniredis
	server  *server.Server
	scripts *interpreter.Interpreter
	journal *journal.Journal
	keys    keys
	log     *slog.Logger

	rewriting sync.Mutex // held by the rewrite that is under way

	mu      sync.Mutex  // held while something runs that may write, until its effect is recorded
	running atomic.Bool // a script holds mu
	unit    unit

	asleep asleep
	kept   []shim.KeptTask // what was loaded of ended tasks
}

// unit is the effect of one script.
type unit struct {
	entries []byte
	keys    []string
	events  [][2]string // channel and message
	refuse  error       // why the script may not write; nil if it may
	refused bool        // the script got that error
}

// outside is the name of the connections of clients, and itself that of the recorder's own commands. A
// command inside of a script has a connection with an empty name.
const (
	outside = "taskgate"
	itself  = "recorder"
)

// recorded has the commands that write; the value is true if the command may make a key.
var recorded = map[string]bool{
	"DEL": false, "PERSIST": false, "PEXPIRE": false, "PEXPIREAT": false,
	"SET": true, "SETNX": true,
	"HSET": true, "HINCRBY": true, "HDEL": false,
	"RPUSH": true, "LTRIM": false,
	"XADD": true, "XDEL": false,
	"ZADD": true, "ZREM": false, "ZREMRANGEBYSCORE": false,
}

// expiry has those that change when a key expires. An answer of 0 means that the key is gone (or, for
// PERSIST, had no expiry). It is not recorded: a start, during which no key expires, still has the key.
var expiry = map[string]bool{"PERSIST": true, "PEXPIRE": true, "PEXPIREAT": true}

// harmless has the commands that write nothing although they are not marked as reading. All but TIME make a
// connection.
var harmless = map[string]bool{"TIME": true, "HELLO": true, "CLIENT": true, "AUTH": true, "SELECT": true}

// isVolatile reports whether a key is not recorded: a restart finds out anew which replicas live, and the
// reports of replicas are short-lived.
func (r *recorder) isVolatile(key string) bool {
	return key == r.keys.replicas() || key == r.keys.abouts() || strings.HasPrefix(key, r.keys.prefix+":minute:")
}

// beforeCommand is the hook of the miniredis. It returns true if it has run the command.
func (r *recorder) beforeCommand(p *server.Peer, cmd string, args ...string) bool {
	_, writes := recorded[cmd]
	if p.ClientName == itself {
		return false
	}
	r.wakeNamed(p, args)
	switch {
	case p.ClientName == "":
		return r.recordInside(p, cmd, args, writes)
	case cmd == "EVALSHA" && len(args) > 0 && r.scripts.Has(args[0]):
		r.recordScript(p, func() string { return r.scripts.Run(args) })
	case cmd == "EVAL" || cmd == "EVALSHA":
		r.recordScript(p, func() string { return r.askEngine(p.Ctx, append([]string{cmd}, args...)) })
	case writes && len(args) > 0 && !r.isVolatile(args[0]):
		r.recordScript(p, func() string { return r.scripts.Do(append([]string{cmd}, args...)) })
	default:
		return false
	}
	return true
}

// recordScript runs a script, and records its effect. run returns the reply as it is sent.
func (r *recorder) recordScript(p *server.Peer, run func() string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.unit = unit{refuse: r.journal.Err()}
	r.running.Store(true)
	defer r.running.Store(false)
	if reply := run(); r.unit.refused {
		p.WriteError("MISCONF " + r.unit.refuse.Error())
	} else {
		p.WriteRaw(reply)
	}
	if u := r.unit; len(u.entries) > 0 || len(u.events) > 0 {
		r.journal.Add(u.keys, u.entries, func() {
			for _, e := range u.events {
				r.redis.Publish(e[0], e[1])
			}
		})
	}
}

// recordInside takes a command of a script. While the journal fails, it refuses the first command that
// writes; a script that has already written goes on. A Redis that is full does the same.
func (r *recorder) recordInside(p *server.Peer, cmd string, args []string, writes bool) bool {
	switch {
	case cmd == "PUBLISH" && len(args) == 2:
		r.unit.events = append(r.unit.events, [2]string{args[0], args[1]})
		p.WriteInt(0)
		return true
	case !writes && !harmless[cmd] && r.server.IsRegisteredCommand(cmd) && !r.server.IsReadOnlyCommand(cmd):
		p.WriteError("ERR " + cmd + " is not recorded")
		return true
	case !writes || len(args) == 0 || r.isVolatile(args[0]):
		return false
	case r.unit.refuse != nil && len(r.unit.entries) == 0:
		r.unit.refused = true
		p.WriteError("MISCONF " + r.unit.refuse.Error())
		return true
	}
	fresh := recorded[cmd] && r.askEngine(p.Ctx, []string{"EXISTS", args[0]}) == ":0\r\n"
	line := append([]string{cmd}, args...)
	reply := r.askEngine(p.Ctx, line)
	p.WriteRaw(reply)
	if strings.HasPrefix(reply, "-") || cmd == "SET" && reply == "$-1\r\n" || expiry[cmd] && reply == ":0\r\n" {
		return true
	}
	if fresh { // an older key of this name may have expired, which is not recorded
		r.unit.addLine("DEL", args[0])
	}
	r.unit.addLine(makeAbsolute(line, time.Now())...)
	r.unit.keys = append(r.unit.keys, args[0])
	if cmd == "DEL" {
		r.unit.keys = append(r.unit.keys, args[1:]...)
	}
	return true
}

// askEngine runs a command for the recorder itself, in the context of a connection, and returns the reply as
// it would be sent.
func (r *recorder) askEngine(ctx any, line []string) string {
	var reply bytes.Buffer
	p := server.NewPeer(bufio.NewWriterSize(&reply, 64)) // most replies are short
	p.Ctx, p.ClientName = ctx, itself
	r.server.Dispatch(p, line)
	p.Flush()
	return reply.String()
}

// makeAbsolute returns a command that has the same effect at any time.
func makeAbsolute(line []string, now time.Time) []string {
	switch line[0] {
	case "PEXPIRE":
		left, _ := strconv.ParseInt(line[2], 10, 64)
		return []string{"PEXPIREAT", line[1], strconv.FormatInt(now.UnixMilli()+left, 10)}
	case "SET":
		if unit := map[string]time.Duration{"ex": time.Second, "px": time.Millisecond}; len(line) == 5 && unit[line[3]] > 0 {
			left, _ := strconv.ParseInt(line[4], 10, 64)
			return []string{"SET", line[1], line[2], "PXAT", strconv.FormatInt(now.Add(time.Duration(left)*unit[line[3]]).UnixMilli(), 10)}
		}
	}
	return line
}

// addLine records a command.
func (u *unit) addLine(line ...string) {
	u.entries = journal.Encode(u.entries, encodeLine(line))
}

// encodeLine spells a command: the number of words, and each word with its length.
func encodeLine(line []string) []byte {
	n := binary.MaxVarintLen64
	for _, word := range line {
		n += binary.MaxVarintLen64 + len(word)
	}
	b := binary.AppendUvarint(make([]byte, 0, n), uint64(len(line)))
	for _, word := range line {
		b = append(binary.AppendUvarint(b, uint64(len(word))), word...)
	}
	return b
}

// errEntry says that an entry is malformed.
var errEntry = errors.New("not a command")

// splitLine is the reverse. The words share memory with the entry.
func splitLine(entry []byte) ([][]byte, error) {
	count, size := binary.Uvarint(entry)
	if size <= 0 || count == 0 || count > uint64(len(entry)) {
		return nil, errEntry
	}
	words := make([][]byte, 0, count)
	for rest := entry[size:]; count > 0; count-- {
		n, size := binary.Uvarint(rest)
		if size <= 0 || n > uint64(len(rest)-size) {
			return nil, errEntry
		}
		words, rest = append(words, rest[size:size+int(n)]), rest[size+int(n):]
	}
	return words, nil
}

// toLine makes a command of its words.
func toLine(words [][]byte) []string {
	line := make([]string, len(words))
	for i, word := range words {
		line[i] = string(word)
	}
	return line
}

// awaitSaved returns once everything about the keys that the commands name is on disk.
func (r *recorder) awaitSaved(ctx context.Context, cmds ...redis.Cmder) error {
	if r.running.Load() { // its effect may have been seen
		r.mu.Lock()
		//lint:ignore SA2001 it has been recorded once the lock was free
		r.mu.Unlock()
	}
	if r.journal.Saved() {
		return nil
	}
	var words []string
	for _, cmd := range cmds {
		for _, a := range cmd.Args() {
			if word, ok := a.(string); ok {
				words = append(words, word)
			}
		}
	}
	err := r.journal.Wait(ctx, words)
	if err != nil && ctx.Err() == nil {
		err = fmt.Errorf("%w: %w", shim.ErrUnavailable, err)
	}
	return err
}

// DialHook implements redis.Hook.
func (r *recorder) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook implements redis.Hook.
func (r *recorder) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if late := r.awaitSaved(ctx, cmd); late != nil && (err == nil || errors.Is(err, redis.Nil)) {
			cmd.SetErr(late)
			return late
		}
		return err
	}
}

// ProcessPipelineHook implements redis.Hook.
func (r *recorder) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		err := next(ctx, cmds)
		late := r.awaitSaved(ctx, cmds...)
		if late == nil {
			return err
		}
		for _, cmd := range cmds { // the error of one leaves the others open
			if cmd.Err() == nil || errors.Is(cmd.Err(), redis.Nil) {
				cmd.SetErr(late)
			}
		}
		if err == nil || errors.Is(err, redis.Nil) {
			return late
		}
		return err
	}
}

// asleep has the records of tasks and their pieces that no command has named since the start. A start that made all of
// them would take several times as long, and they would take twice the memory.
type asleep struct {
	mu      sync.Mutex // guards records, and is held for moments; the holder of recorder.mu owns each record
	records map[string]*sleeper
}

// sleeper is one key, as the journal has it.
type sleeper struct {
	entries [][]byte
	bytes   int64                 // of all entries
	later   map[int]journal.Place // large entries, while the journal is read: most of them may have expired
	expires string                // when, in Unix ms; "" for never
}

// readLater is the least length of an entry that is read once it is known to count.
const readLater = 4 << 10

// keepEntry keeps an entry about the key of a sleeper while the journal is read.
func (a *asleep) keepEntry(entry []byte, words [][]byte, at journal.Place) {
	key := string(words[1])
	s := a.records[key]
	switch cmd := string(words[0]); {
	case cmd == "DEL":
		delete(a.records, key)
	case cmd == "PERSIST" && s != nil:
		s.expires = ""
	case cmd == "PEXPIREAT" && s != nil && len(words) > 2:
		s.expires = string(words[2])
	case !expiry[cmd]:
		if s == nil {
			s = &sleeper{}
			a.records[key] = s
		}
		s.bytes += int64(len(entry))
		if len(entry) >= readLater {
			if s.later == nil {
				s.later = make(map[int]journal.Place)
			}
			s.later[len(s.entries)], entry = at, nil
		}
		s.entries = append(s.entries, bytes.Clone(entry))
	}
}

// readEntries reads what was left in the journal, if no more than most bytes have not expired; 0 is no bound.
func (a *asleep) readEntries(most int64) error {
	a.expireSleepers()
	all, over := int64(0), int64(0)
	for _, s := range a.records {
		all += s.bytes
		if at, err := strconv.ParseInt(s.expires, 10, 64); err == nil {
			over = max(over, at)
		}
	}
	if most > 0 && all > most {
		return &tooLargeError{all, most, time.UnixMilli(over)}
	}
	for key, s := range a.records {
		for i, at := range s.later {
			entry, err := at.Read()
			if errors.Is(err, journal.ErrGone) { // the clock went back: it had expired
				delete(a.records, key)
				break
			}
			if err != nil {
				return err
			}
			s.entries[i] = entry
		}
		s.later = nil
	}
	return nil
}

// tooLargeError says that a folder has more of tasks than fits into memory.
type tooLargeError struct {
	all, most int64
	over      time.Time // when the last task that has ended expires
}

func (e *tooLargeError) Error() string {
	return fmt.Sprintf("the folder has %d MiB of tasks, and the memory limit of this process allows for %d MiB: start it with GOMEMLIMIT=%dMiB or more, in a container with as much, "+
		"until these tasks have expired (the last that has ended does so at %s), or move the folder away to begin with an empty store",
		e.all>>20, e.most>>20, foldersShare*e.all>>20+1, e.over.UTC().Format(time.RFC3339))
}

// findSleeper returns a record that sleeps, or nil.
func (a *asleep) findSleeper(key string) *sleeper {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.records[key]
}

func (a *asleep) forgetSleeper(key string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.records, key)
}

// expireSleepers removes the records that have expired.
func (a *asleep) expireSleepers() {
	now := time.Now().UnixMilli()
	a.mu.Lock()
	defer a.mu.Unlock()
	for key, s := range a.records {
		if at, err := strconv.ParseInt(s.expires, 10, 64); err == nil && at <= now {
			delete(a.records, key)
		}
	}
}

// sleepingKeys removes the expired records and lists the keys of the others.
func (a *asleep) sleepingKeys() []string {
	a.expireSleepers()
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Collect(maps.Keys(a.records))
}

// wakeNamed moves the sleeping records that a command names into the engine.
func (r *recorder) wakeNamed(p *server.Peer, words []string) {
	for _, word := range words {
		switch {
		case !r.keys.isOfTask(word) || r.asleep.findSleeper(word) == nil:
		case p.ClientName == "": // inside of a script, which has r.mu
			r.wakeRecord(p.Ctx, word)
		default:
			r.mu.Lock()
			r.wakeRecord(nil, word)
			r.mu.Unlock()
		}
	}
}

// wakeRecord moves a record into the engine if it sleeps. r.mu is held.
func (r *recorder) wakeRecord(ctx any, key string) {
	s := r.asleep.findSleeper(key)
	if s == nil {
		return
	}
	for _, entry := range s.entries {
		words, _ := splitLine(entry) // it was checked when it was loaded
		r.askEngine(ctx, toLine(words))
	}
	if s.expires != "" {
		r.askEngine(ctx, []string{"PEXPIREAT", key, s.expires})
	}
	r.asleep.forgetSleeper(key)
}
