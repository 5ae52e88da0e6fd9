package redisstore

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"

	"taskgate/shim"
)

// keys spells every key and every channel.
//
// Everything about one task has the first two hex digits of its id as hash tag. So a task, its pieces, its
// place in its runner's set and its channels are in one slot of a cluster, where one script may touch them
// all, and the 256 shards spread over its masters.
type keys struct {
	prefix  string
	cluster bool // keys with different hash tags may be on different nodes
}

// shards are all hash tags.
var shards = func() (all [256]string) {
	for i := range all {
		all[i] = fmt.Sprintf("%02x", i)
	}
	return all
}()

// digits are the first digits of ids. A single Redis has a set of all tasks for each digit; a cluster has one
// for each shard.
var digits = func() (all [shim.Parts]string) {
	for i := range all {
		all[i] = fmt.Sprintf("%x", i)
	}
	return all
}()

// shard is the hash tag of a task.
func shard(id shim.ID) string { return string(id[:2]) }

// in begins a key or channel of a shard.
func (k keys) in(shard, kind, name string) string {
	return k.prefix + ":{" + shard + "}:" + kind + ":" + name
}

// task is the hash with a task's fields.
func (k keys) task(id shim.ID) string { return k.in(shard(id), "t", string(id)) }

// isTask reports whether a key is that of a task, and isOfTask whether it is that or the one of its pieces.
func (k keys) isTask(key string) bool { return k.isKind(key, "}:t:") }

func (k keys) isOfTask(key string) bool { return k.isTask(key) || k.isKind(key, "}:p:") }

func (k keys) isKind(key, kind string) bool {
	rest, ok := strings.CutPrefix(key, k.prefix)
	return ok && len(rest) > len(":{00}:t:") && rest[:2] == ":{" && rest[4:8] == kind
}

// idOf is the id in the key of a task.
func (k keys) idOf(key string) shim.ID { return shim.ID(key[len(k.prefix)+len(":{00}:t:"):]) }

// batches is the list of the pieces of a task.
func (k keys) batches(id shim.ID) string { return k.in(shard(id), "p", string(id)) }

// all is the sorted set of all tasks whose ids begin so, by creation in ms, which operators search. In a
// cluster it is that of a shard.
func (k keys) all(begin string) string { return k.in(begin, "all", "") }

// unknown is the list of the tasks whose server may have done the work, of all callers.
func (k keys) unknown() string { return k.list(unknownList) }

// unknownList is the list key of the tasks with an unknown outcome. List keys of callers have a slash.
const unknownList = "unknown"

// abouts is the hash of the reports of replicas, minute that of their notes on a minute, by its number.
func (k keys) abouts() string        { return k.prefix + ":about" }
func (k keys) minute(n int64) string { return k.prefix + ":minute:" + strconv.FormatInt(n, 10) }

// run is the sorted set of tasks in a shard that a replica runs. The score is the version of the last change
// by anyone other than the runner; 0 before the first.
func (k keys) run(shard string, r shim.Replica) string { return k.in(shard, "run", string(r)) }

// events is the channel of a task, inbox that of a replica for its tasks in a shard.
func (k keys) events(id shim.ID) string                  { return k.in(shard(id), "ev", string(id)) }
func (k keys) inbox(shard string, r shim.Replica) string { return k.in(shard, "in", string(r)) }

// replicas is the hash of heartbeats, goodbyes the channel on which replicas hear that another one has left.
func (k keys) replicas() string { return k.prefix + ":replicas" }
func (k keys) goodbyes() string { return k.prefix + ":bye" }

// epoch names this set of data: it goes when all data goes.
func (k keys) epoch() string { return k.prefix + ":epoch" }

// back is the newest heartbeat that was known when Redis was found to have gone back. It is in the slot of the
// heartbeats, so that it is within reach where they are.
func (k keys) back() string { return k.prefix + ":back{" + k.replicas() + "}" }

// repeats is the sorted set of the clients that have calls which a repeat may pick up, by the time until when; repeatsOf
// is the hash of those calls of a client, and repeatNews the channel on which replicas hear of them.
func (k keys) repeats() string                { return k.prefix + ":repeats" }
func (k keys) repeatsOf(client string) string { return k.prefix + ":repeats:" + client }
func (k keys) repeatNews() string             { return k.prefix + ":repeatnews" }

// paused is the hash of what operators have paused. Replicas hear of its changes on the channel of the goodbyes.
func (k keys) paused() string { return k.prefix + ":paused" }

// nothing is a key in a shard that never exists.
func (k keys) nothing(shard string) string { return k.in(shard, "nothing", "") }

// probe is the channel on which a Store tests its own subscription.
func (k keys) probe(name string) string { return k.prefix + ":probe:" + name }

// list is the sorted set of the tasks with a list key, by creation. The list key is hashed because it may be
// long, or private.
func (k keys) list(listKey string) string { return k.prefix + ":{" + digest(listKey) + "}:o" }

// digest replaces, in a key, a text that may be long or private.
func digest(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:16])
}

// record has the keys of a task in the order that scripts want: task, batches, its runner's set.
func (k keys) record(id shim.ID, runner shim.Replica) []string {
	return []string{k.task(id), k.batches(id), k.run(shard(id), runner)}
}

// sessionTag is the hash tag of a client session. It is made from the hash of the id, because clients may
// send any id.
func sessionTag(id string) string { return digest(id)[:2] }

// session is the hash with the state of a client session, signals the list of the signals to its replicas.
func (k keys) session(id string) string { return k.in(sessionTag(id), "c", id) }
func (k keys) signals(id string) string { return k.in(sessionTag(id), "x", id) }

// upstream is the hash of the session that a client session has with an upstream.
func (k keys) upstream(name, id string) string {
	return k.in(sessionTag(id), "u", name+":"+id)
}

// due is the sorted set of the sessions with an upstream, by when each is to be looked at, in ms.
func (k keys) due(upstream string) string { return k.prefix + ":due:" + upstream }

// numbers is the hash of the numbers that were taken, by upstream.
func (k keys) numbers() string { return k.prefix + ":numbers" }

// told is the channel on which replicas pass on what an upstream has said.
func (k keys) told(upstream string) string { return k.prefix + ":told:" + upstream }

// ofSession has the set of changes, and all keys of a session, in one slot.
func (k keys) ofSession(id string) []string {
	return append([]string{changesOf(k, id), k.session(id), k.signals(id)}, k.log(id)...)
}

// log has the Redis Stream with the messages of a session's streams, and the hash with the state of those
// streams. logEvents is the channel on which followers of a log hear of more.
func (k keys) log(id string) []string {
	return []string{k.in(sessionTag(id), "log", id), k.in(sessionTag(id), "streams", id)}
}
func (k keys) logEvents(id string) string { return k.in(sessionTag(id), "lev", id) }

// changesOf is the sorted set of the sessions that have changed lately, by when, and allChanges are all such sets.
func changesOf(k keys, id string) string {
	if k.cluster {
		return k.in(sessionTag(id), "ch", "")
	}
	return k.in("sessions", "ch", "")
}

func allChanges(k keys) (all []string) {
	if !k.cluster {
		return []string{changesOf(k, "")}
	}
	for _, tag := range shards {
		all = append(all, k.in(tag, "ch", ""))
	}
	return all
}

// sessions is the sorted set of all client sessions, by their last use, and sessionsOf that of a share, by the
// digest of its name. They are in one slot, for one script.
func (k keys) sessions() string               { return k.prefix + ":{sessions}" }
func (k keys) sessionsOf(share string) string { return k.prefix + ":{sessions}:o:" + share }

// sessionSets are the set of all client sessions, and those of some shares.
func (k keys) sessionSets(shares []string) []string {
	sets := []string{k.sessions()}
	for _, share := range shares {
		sets = append(sets, k.sessionsOf(share))
	}
	return sets
}

// refusedToken exists while a server refuses a token; the name is a hash of it.
func (k keys) refusedToken(token string) string { return k.prefix + ":refused:" + token }

// sessionEvents is the channel on which replicas hear that a session has changed.
func (k keys) sessionEvents() string { return k.prefix + ":cev" }
