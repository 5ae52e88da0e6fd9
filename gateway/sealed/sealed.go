// Package sealed makes and reads the requestState with which a client comes back to a call that
// waits for its answers (protocol.md 2.7, design.md 0.18).
//
// A client holds the state in between and may do with it what it likes, so it is encrypted and
// authenticated (AES-256-GCM). Its [Binding] goes into the authentication, and is taken from the
// request that the state comes back with. So a state for another caller or other arguments fails to
// open, exactly as a forged one.
//
// The package knows keys and bytes. The shim knows the calls, and whether one has been answered.
package sealed

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
)

// prefix begins every state of ours, and tells it from those of servers behind us. The number is
// that of the format.
const prefix = "tg1."

// maxState bounds a state that is read, in bytes: ours are much shorter.
const maxState = 16 << 10

// KeySize is the length of a key, in bytes.
const KeySize = 32

// ErrSealed says that the state is of other keys, or of another request. It does not tell which.
var ErrSealed = errors.New("the state was not given out for this request")

// Key is one key by the name that stands in the states sealed with it.
type Key struct {
	ID     string // without a dot; readable in each state
	Secret []byte // KeySize bytes
}

// Keyring seals with its first key and opens with any. It is safe for concurrent use.
type Keyring struct {
	first string
	keys  map[string]cipher.AEAD
}

// New makes a Keyring. A replaced key goes to the end of the list, and leaves it once all states
// sealed with it are over.
func New(keys ...Key) (*Keyring, error) {
	if len(keys) == 0 {
		return nil, errors.New("no key")
	}
	r := &Keyring{first: keys[0].ID, keys: make(map[string]cipher.AEAD, len(keys))}
	for _, k := range keys {
		if k.ID == "" || strings.Contains(k.ID, ".") || r.keys[k.ID] != nil {
			return nil, fmt.Errorf("key id %q is empty, has a dot or is given twice", k.ID)
		}
		if len(k.Secret) != KeySize {
			return nil, fmt.Errorf("key %q has %d bytes in place of %d", k.ID, len(k.Secret), KeySize)
		}
		block, err := aes.NewCipher(k.Secret)
		if err != nil {
			return nil, err
		}
		// Nonces are random: with 96 bits a key is good for 2^32 states.
		if r.keys[k.ID], err = cipher.NewGCMWithRandomNonce(block); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// Generate makes a Keyring with a key of its own: for a gateway that is alone, and whose calls end
// with it.
func Generate() (*Keyring, error) {
	return New(Key{ID: "own", Secret: NewSecret()})
}

// NewSecret returns KeySize random bytes.
func NewSecret() []byte {
	secret := make([]byte, KeySize)
	_, _ = rand.Read(secret) // never fails
	return secret
}

// Binding is what a state is good for. All of it must be the same when the client comes back.
type Binding struct {
	Owner    string            // the principal (shim.Principal.Owner)
	Endpoint string            // the upstream's configured name
	Method   string            // the request's method
	Params   [sha256.Size]byte // what it asks for, by Digest
}

// bytes is the binding as bytes; different bindings differ.
func (b Binding) bytes(key string) []byte {
	var out []byte
	for _, s := range []string{prefix, key, b.Owner, b.Endpoint, b.Method} {
		out = binary.AppendUvarint(out, uint64(len(s)))
		out = append(out, s...)
	}
	return append(out, b.Params[:]...)
}

// state is what a client is to bring back, unread.
type state struct {
	Call    string `json:"call"` // the parked call
	Expires int64  `json:"exp"`  // Unix time in milliseconds; read by the version before
}

// Seal makes the text of a state that leads to a call, and that only a request with the same binding opens. Replicas of
// the version before open it until it expires.
func (r *Keyring) Seal(b Binding, call string, expires time.Time) string {
	plain, _ := json.Marshal(state{call, expires.UnixMilli()}) // texts and numbers can always be written
	return r.SealBytes(b, plain)
}

// SealBytes seals any other text for this binding.
func (r *Keyring) SealBytes(b Binding, plain []byte) string {
	box := r.keys[r.first].Seal(nil, nil, plain, b.bytes(r.first))
	return prefix + r.first + "." + encoding.EncodeToString(box)
}

// encoding is strict, so that a state has one spelling. It skips line breaks; OpenBytes refuses
// those.
var encoding = base64.RawURLEncoding.Strict()

// Ours reports whether a state claims to be a gateway's. Any other belongs to the server behind.
func Ours(text string) bool { return strings.HasPrefix(text, prefix) }

// Open returns the call of a state that came back with a request of this binding. It returns
// ErrSealed for a state that cannot be opened, before anything is looked up for it. The record of the call tells whether
// it is still open, by the store's clock.
func (r *Keyring) Open(text string, b Binding) (call string, err error) {
	if len(text) > maxState {
		return "", ErrSealed
	}
	plain, err := r.OpenBytes(text, b)
	if err != nil {
		return "", err
	}
	var s state
	if err := json.Unmarshal(plain, &s); err != nil {
		return "", ErrSealed
	}
	return s.Call, nil
}

// OpenBytes reads what SealBytes has sealed for this binding. It returns ErrSealed for any other
// text.
func (r *Keyring) OpenBytes(text string, b Binding) ([]byte, error) {
	id, box, err := r.decode(text)
	if err != nil {
		return nil, err
	}
	plain, err := r.keys[id].Open(nil, nil, box, b.bytes(id))
	if err != nil {
		return nil, ErrSealed
	}
	return plain, nil
}

// MayOpen reports whether Open may open a state: it names a key and is well formed. The binding of any other need
// not be made.
func (r *Keyring) MayOpen(text string) bool {
	if len(text) > maxState {
		return false
	}
	_, box, err := r.decode(text)
	return err == nil && len(box) >= overhead
}

// overhead is how much longer a box is than what is in it: a nonce of 12 bytes and a tag of 16.
const overhead = 12 + 16

// decode returns the key and the box of a sealed text.
func (r *Keyring) decode(text string) (id string, box []byte, err error) {
	id, encoded, ok := strings.Cut(strings.TrimPrefix(text, prefix), ".")
	if !ok || r.keys[id] == nil || !Ours(text) || strings.ContainsAny(encoded, "\r\n") {
		return "", nil, ErrSealed
	}
	if box, err = encoding.DecodeString(encoded); err != nil {
		return "", nil, ErrSealed
	}
	return id, box, nil
}
