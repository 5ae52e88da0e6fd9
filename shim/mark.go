package shim

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	lru "github.com/hashicorp/golang-lru/v2"
)

// The mark of an id: when its task was made, for how long it is kept, in which epoch of the
// store, and a code by which this deployment knows the id as its own (design.md 0.30).
const (
	uuidLength = 36
	markBytes  = 4 + 4 + 4 + 8
	idLength   = uuidLength + 1 + 2*markBytes
)

// lostFor is for how much longer than its TTL a task of another epoch counts as lost: it may have run
// for so long before its end.
const lostFor = 24 * time.Hour

// lostAfter is how long a record has to be missing before its task counts as lost. After a store has
// gone back to an older state, the replica that runs the task looks at the record every 27 s and writes
// it again, or has kept the task's end.
const lostAfter = 28 * time.Second

// maxMissing is how many ids with a missing record a replica remembers.
const maxMissing = 10_000

// messageMissing is the status message of a task until lostAfter has passed.
const messageMissing = "the store does not have the task just now; the work most likely goes on"

// errLostTask is the error of a task whose record is gone from the store.
var errLostTask = &RPCError{Code: codeInternal, Message: "the gateway was restarted, or its store has lost the task; " +
	"the work may have been done"}

// marker makes the ids of tasks, and recognises them when their record is gone.
type marker struct {
	keys  [][]byte // the first one marks; all are known
	store Store
	// epoch is the store's, by its last read; nil before, and after forgetEpoch.
	epoch atomic.Pointer[string]
	// missing says since when the record of a task is known to be missing.
	missing *lru.Cache[ID, time.Time]
}

func newMarker(store Store, keys [][]byte) *marker {
	if len(keys) == 0 {
		keys = [][]byte{[]byte("taskgate")}
	}
	missing, _ := lru.New[ID, time.Time](maxMissing) // the only error is a size of 0
	return &marker{keys: keys, store: store, missing: missing}
}

// newID makes an unguessable id for a task of an owner. The mark keeps no secret: the task's record
// decides who may read it.
func (m *marker) newID(ctx context.Context, owner, upstream string, ttl time.Duration) ID {
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
	b = append(b, m.makeCode(m.keys[0], u, owner, upstream, b)...)
	return ID(u + "-" + hex.EncodeToString(b))
}

func (m *marker) readEpoch(ctx context.Context) (string, error) {
	epoch, err := m.store.Epoch(ctx)
	if err == nil {
		m.epoch.Store(&epoch)
	}
	return epoch, err
}

// forgetEpoch has the next id read the epoch: the store may have another one.
func (m *marker) forgetEpoch() { m.epoch.Store(nil) }

// describeLost describes a task whose record is missing, if the id is one of this deployment for this
// owner and upstream, and the task would still be kept, or belongs to another epoch. The task is
// working at first, and failed once its record was missing for lostAfter. Any other id is ErrNotFound.
func (m *marker) describeLost(ctx context.Context, id ID, owner, upstream string) (Task, error) {
	if len(id) != idLength {
		return Task{}, ErrNotFound
	}
	name, mark := string(id[:uuidLength]), make([]byte, markBytes)
	if _, err := hex.Decode(mark, []byte(id[uuidLength+1:])); err != nil {
		return Task{}, ErrNotFound
	}
	said, code := mark[:markBytes-8], mark[markBytes-8:]
	made := func(key []byte) bool { return hmac.Equal(code, m.makeCode(key, name, owner, upstream, said)) }
	if !slices.ContainsFunc(m.keys, made) {
		return Task{}, ErrNotFound
	}
	created := time.Unix(int64(binary.BigEndian.Uint32(said)), 0).UTC()
	ttl := time.Duration(binary.BigEndian.Uint32(said[4:])) * time.Second
	if left := time.Until(created.Add(ttl)); left < 0 {
		epoch, err := m.readEpoch(ctx)
		if err != nil {
			return Task{}, err
		}
		if left < -lostFor || string(epochBytes(epoch)) == string(said[8:]) {
			return Task{}, ErrNotFound
		}
	}
	t := Task{
		ID: id, Owner: owner, Upstream: upstream, Visible: true, Status: Working, StatusMessage: messageMissing,
		CreatedAt: created, UpdatedAt: created, TTL: ttl,
	}
	now := time.Now()
	since, known, _ := m.missing.PeekOrAdd(id, now)
	if known && now.Sub(since) >= lostAfter {
		t.Status, t.StatusMessage, t.UpdatedAt = Failed, errLostTask.Message, since.Add(lostAfter).UTC()
		t.Outcome = &Outcome{Error: errLostTask.Object()}
	}
	return t.shownAt(now), nil
}

// makeCode binds a mark to its id, to the owner of the task and to its upstream.
func (m *marker) makeCode(key []byte, name, owner, upstream string, said []byte) []byte {
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

// ParseID reads an id that a client sent, in its canonical spelling only: a key must have exactly one
// spelling. All others are ErrNotFound, as an unknown id is (T30, L36). An id without a mark is of a
// question.
func ParseID(s string) (ID, error) {
	if len(s) != uuidLength && len(s) != idLength {
		return "", ErrNotFound
	}
	for i := range len(s) {
		dash := i == 8 || i == 13 || i == 18 || i == 23 || i == uuidLength
		if dash != (s[i] == '-') || !dash && !strings.Contains("0123456789abcdef", s[i:i+1]) {
			return "", ErrNotFound
		}
	}
	return ID(s), nil
}
