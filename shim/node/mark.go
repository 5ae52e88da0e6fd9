package node

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"slices"
	"sync/atomic"
	"time"

	"taskgate/shim"

	"github.com/google/uuid"
	lru "github.com/hashicorp/golang-lru/v2"
)

// The mark of an id: when its task was made, for how long it is kept, in which epoch of the
// store, and a code by which this deployment knows the id as its own (design.md 0.30).
const (
	markBytes = 4 + 4 + 4 + 8
)

// lostFor is for how much longer than its TTL a task of another epoch counts as lost: it may have run
// for so long before its end.
const lostFor = 24 * time.Hour

// LostAfter is how long a record has to be missing before its task counts as lost. After a store has
// gone back to an older state, the replica that runs the task looks at the record every 27 s and writes
// it again, or has kept the task's end.
const LostAfter = 28 * time.Second

// maxMissing is how many ids a replica remembers, with a missing record, or with one that it has read.
const maxMissing = 10_000

// messageMissing is the status message of a task until LostAfter has passed.
const messageMissing = "the store does not have the task just now; the work most likely goes on"

// errLostTask is the error of a task whose record is gone from the store.
var errLostTask = &shim.RPCError{Code: shim.CodeInternal, Message: "the gateway was restarted, or its store has lost the task; " +
	"the work may have been done"}

// Marker makes the ids of tasks, and recognises them when their record is gone.
type Marker struct {
	keys  [][]byte // the first one marks; all are known
	store shim.Store
	// epoch is the store's, by its last read; nil before, and after ForgetEpoch.
	epoch   atomic.Pointer[string]
	missing *lru.Cache[shim.ID, time.Time] // since when the record of a task is known to be missing
	created *lru.Cache[shim.ID, time.Time] // when tasks were made that were read here, by the store's clock
}

// newMarker makes the marker of a deployment with these keys, or with one that is known to all.
func newMarker(store shim.Store, keys [][]byte) *Marker {
	if len(keys) == 0 {
		keys = [][]byte{[]byte("taskgate")}
	}
	missing, _ := lru.New[shim.ID, time.Time](maxMissing) // the only error is a size of 0
	created, _ := lru.New[shim.ID, time.Time](maxMissing)
	return &Marker{keys: keys, store: store, missing: missing, created: created}
}

// NoteRead notes that the record of a task is there.
func (m *Marker) NoteRead(t shim.Task) {
	m.missing.Remove(t.ID)
	if t.Visible && !t.Status.Final() {
		m.created.Add(t.ID, t.CreatedAt)
	}
}

// newID makes an unguessable id for a task of an owner. The mark keeps no secret: the task's record
// decides who may read it.
func (m *Marker) newID(ctx context.Context, owner, upstream string, ttl time.Duration) shim.ID {
	u := uuid.NewString()
	epoch := ""
	if known := m.epoch.Load(); known != nil {
		epoch = *known
	} else {
		epoch, _ = m.readEpoch(ctx) // after an error, the mark is of no epoch
	}
	b := make([]byte, 0, markBytes)
	b = binary.BigEndian.AppendUint32(b, uint32(time.Now().Unix()))
	b = binary.BigEndian.AppendUint32(b, uint32(min(ttl/time.Second, 1<<32-1)))
	b = append(b, epochBytes(epoch)...)
	b = append(b, makeCode(m.keys[0], u, owner, upstream, b)...)
	return shim.ID(u + "-" + hex.EncodeToString(b))
}

func (m *Marker) readEpoch(ctx context.Context) (string, error) {
	epoch, err := m.store.Epoch(ctx)
	if err == nil {
		m.epoch.Store(&epoch)
	}
	return epoch, err
}

// ForgetEpoch has the next id read the epoch: the store may have another one.
func (m *Marker) ForgetEpoch() { m.epoch.Store(nil) }

// DescribeLost describes a task whose record is missing, if the id is one of this deployment for this
// owner and upstream, and the task would still be kept, or belongs to another epoch. The task is
// working at first, and failed once its record was missing for LostAfter. Any other id is ErrNotFound.
func (m *Marker) DescribeLost(ctx context.Context, id shim.ID, owner, upstream string) (shim.Task, error) {
	t, in, ok := readMark(m.keys, id, owner, upstream)
	if !ok {
		return shim.Task{}, shim.ErrNotFound
	}
	if left := time.Until(t.ExpiresAt()); left < 0 {
		epoch, err := m.readEpoch(ctx)
		if err != nil {
			return shim.Task{}, err
		}
		if left < -lostFor || string(epochBytes(epoch)) == in {
			return shim.Task{}, shim.ErrNotFound
		}
	}
	if at, known := m.created.Peek(id); known { // the mark has seconds of this process's clock
		t.CreatedAt, t.UpdatedAt = at, at
	}
	t.StatusMessage = messageMissing
	now := time.Now()
	since, known, _ := m.missing.PeekOrAdd(id, now)
	if known && now.Sub(since) >= LostAfter {
		t.Status, t.StatusMessage, t.UpdatedAt = shim.Failed, errLostTask.Message, since.Add(LostAfter).UTC()
		t.Outcome = &shim.Outcome{Error: errLostTask.Object()}
	}
	return t.ShownAt(now), nil
}

// ReadMark describes a task by its id, as a working one, if one of these keys has marked the id for this owner and
// upstream.
func ReadMark(keys [][]byte, id shim.ID, owner, upstream string) (shim.Task, bool) {
	t, _, ok := readMark(keys, id, owner, upstream)
	return t, ok
}

// readMark is ReadMark, with the epoch in the mark.
func readMark(keys [][]byte, id shim.ID, owner, upstream string) (t shim.Task, epoch string, ok bool) {
	if len(id) != shim.MarkedIDLength {
		return t, "", false
	}
	name, mark := string(id[:shim.BareIDLength]), make([]byte, markBytes)
	if _, err := hex.Decode(mark, []byte(id[shim.BareIDLength+1:])); err != nil {
		return t, "", false
	}
	said, code := mark[:markBytes-8], mark[markBytes-8:]
	if !slices.ContainsFunc(keys, func(key []byte) bool { return hmac.Equal(code, makeCode(key, name, owner, upstream, said)) }) {
		return t, "", false
	}
	created := time.Unix(int64(binary.BigEndian.Uint32(said)), 0).UTC()
	return shim.Task{
		ID: id, Owner: owner, Upstream: upstream, Visible: true, Status: shim.Working, CreatedAt: created, UpdatedAt: created,
		TTL: time.Duration(binary.BigEndian.Uint32(said[4:])) * time.Second,
	}, string(said[8:]), true
}

// makeCode binds a mark to its id, to the owner of the task and to its upstream.
func makeCode(key []byte, name, owner, upstream string, said []byte) []byte {
	bound, _ := json.Marshal([]string{name, owner, upstream, hex.EncodeToString(said)}) // always succeeds for strings
	h := hmac.New(sha256.New, key)
	h.Write(bound)
	return h.Sum(nil)[:8]
}

// epochBytes is the form of an epoch in a mark.
func epochBytes(epoch string) []byte {
	sum := sha256.Sum256([]byte(epoch))
	return sum[:4]
}
