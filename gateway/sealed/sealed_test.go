package sealed_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"taskgate/gateway/sealed"
	"taskgate/internal/jsonrpc"
)

func ring(t testing.TB, keys ...sealed.Key) *sealed.Keyring {
	t.Helper()
	r, err := sealed.New(keys...)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func key(id string, b byte) sealed.Key {
	return sealed.Key{ID: id, Secret: bytes.Repeat([]byte{b}, sealed.KeySize)}
}

var (
	noon = time.UnixMilli(1_800_000_000_000)
	mine = sealed.Binding{
		Owner: "alice", Endpoint: "research", Method: "tools/call",
		Params: sealed.Digest(json.RawMessage(`"book"`), json.RawMessage(`{"a":1}`)),
	}
	end = noon.Add(time.Minute)
)

func seal(t testing.TB, r *sealed.Keyring) string {
	t.Helper()
	return r.Seal(mine, "c1", end)
}

func TestSealOpen(t *testing.T) {
	r := ring(t, key("2026-11", 1))
	text := seal(t, r)
	if !strings.HasPrefix(text, "tg1.2026-11.") || !sealed.Ours(text) || sealed.Ours("x"+text) {
		t.Errorf("state %q", text)
	}
	got, err := r.Open(text, mine)
	if err != nil || got != "c1" {
		t.Errorf("opened %q, %v", got, err)
	}
	if again := seal(t, r); again == text {
		t.Error("two states of the same content are the same: the nonce repeats")
	}
	if strings.Contains(decoded(t, text), "call") {
		t.Error("the state can be read")
	}
}

// Bytes are sealed like a state, and neither opens as the other.
func TestBytes(t *testing.T) {
	r := ring(t, key("a", 1))
	of := sealed.Binding{Method: "token", Params: sealed.Digest(json.RawMessage(`1`))}
	long := bytes.Repeat([]byte("x"), 20<<10)
	text := r.SealBytes(of, long)
	if got, err := r.OpenBytes(text, of); err != nil || !bytes.Equal(got, long) {
		t.Errorf("opened %d bytes, %v", len(got), err)
	}
	if _, err := r.OpenBytes(text, mine); !errors.Is(err, sealed.ErrSealed) {
		t.Errorf("opened for something else: %v", err)
	}
	if _, err := r.OpenBytes(seal(t, r), of); !errors.Is(err, sealed.ErrSealed) {
		t.Errorf("a state was opened: %v", err)
	}
}

func decoded(t *testing.T, text string) string {
	t.Helper()
	b, err := base64.RawURLEncoding.DecodeString(text[strings.LastIndexByte(text, '.')+1:])
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// The clock of this process does not close a state: that of the store may be behind, and the record of the call is gone
// once its time is over.
func TestExpiryIsTheStores(t *testing.T) {
	r := ring(t, key("a", 1))
	if call, err := r.Open(r.Seal(mine, "c1", time.Unix(1, 0)), mine); call != "c1" || err != nil {
		t.Errorf("%q, %v", call, err)
	}
}

// Whatever of the request is another, the state does not open; nor where two
// parts of the binding have only moved their border.
func TestForeign(t *testing.T) {
	r := ring(t, key("a", 1))
	text := seal(t, r)
	for name, change := range map[string]func(*sealed.Binding){
		"owner":     func(b *sealed.Binding) { b.Owner = "bob" },
		"anonymous": func(b *sealed.Binding) { b.Owner = "" },
		"endpoint":  func(b *sealed.Binding) { b.Endpoint = "other" },
		"method":    func(b *sealed.Binding) { b.Method = "prompts/get" },
		"params":    func(b *sealed.Binding) { b.Params[0]++ },
		"border":    func(b *sealed.Binding) { b.Owner, b.Endpoint = "alicer", "esearch" },
	} {
		b := mine
		change(&b)
		if _, err := r.Open(text, b); !errors.Is(err, sealed.ErrSealed) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A key opens for as long as it is in the list, wherever it stands there.
func TestRotation(t *testing.T) {
	before := ring(t, key("old", 1))
	text := seal(t, before)
	during := ring(t, key("new", 2), key("old", 1))
	if _, err := during.Open(text, mine); err != nil {
		t.Errorf("the old key: %v", err)
	}
	if fresh := seal(t, during); !strings.HasPrefix(fresh, "tg1.new.") {
		t.Errorf("sealed as %q", fresh)
	}
	after := ring(t, key("new", 2))
	if _, err := after.Open(text, mine); !errors.Is(err, sealed.ErrSealed) {
		t.Errorf("a key that is gone: %v", err)
	}
	// The id in the text is authenticated too, even between keys that are the same.
	twin := ring(t, key("old", 1), key("twin", 1))
	if _, err := twin.Open(strings.Replace(text, ".old.", ".twin.", 1), mine); !errors.Is(err, sealed.ErrSealed) {
		t.Errorf("renamed: %v", err)
	}
}

func TestGenerateIsNobodyElses(t *testing.T) {
	a, errA := sealed.Generate()
	b, errB := sealed.Generate()
	if errA != nil || errB != nil {
		t.Fatal(errA, errB)
	}
	text := seal(t, a)
	if _, err := a.Open(text, mine); err != nil {
		t.Error(err)
	}
	if _, err := b.Open(text, mine); !errors.Is(err, sealed.ErrSealed) {
		t.Errorf("opened by another process: %v", err)
	}
}

func TestNewRefuses(t *testing.T) {
	for name, keys := range map[string][]sealed.Key{
		"none":    nil,
		"no id":   {key("", 1)},
		"dot":     {key("a.b", 1)},
		"twice":   {key("a", 1), key("a", 2)},
		"short":   {{ID: "a", Secret: make([]byte, 16)}},
		"too big": {{ID: "a", Secret: make([]byte, 64)}},
	} {
		if _, err := sealed.New(keys...); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

// Retries are compared by what they say.
func TestDigest(t *testing.T) {
	digest := func(text string) [32]byte {
		if text == "" {
			return sealed.Digest(nil)
		}
		return sealed.Digest(json.RawMessage(text))
	}
	for _, c := range []struct {
		a, b string
		same bool
	}{
		{`{"a":1,"b":[1,2]}`, "{ \"b\" : [ 1 , 2 ],\n\"a\":1 }", true},
		{`{"a":{"y":1,"x":2}}`, `{"a":{"x":2,"y":1}}`, true},
		{`"\u00e9\/"`, `"é/"`, true},
		{`{"\u0061":1}`, `{"a":1}`, true},
		{`{"a":1}`, `{"a":2}`, false},
		{`1.0`, `1`, false},
		{`"1"`, `1`, false},
		{`null`, ``, false},
		{`[1,2]`, `[2,1]`, false},
		{`[1,2]`, `[12]`, false},
		{`[[1],2]`, `[[1,2]]`, false},
		{`{"a":"b\",\"c\":\"d"}`, `{"a":"b","c":"d"}`, false},
		{`{}`, `[]`, false},
	} {
		if got := digest(c.a) == digest(c.b); got != c.same {
			t.Errorf("%s and %s: same %t", c.a, c.b, got)
		}
	}
	if sealed.Digest(json.RawMessage(`1`), nil) == sealed.Digest(nil, json.RawMessage(`1`)) {
		t.Error("the order of the values does not count")
	}
}

// genuine is a state of the key a for mine, so that a change of the format shows:
// states are under way while gateways are replaced.
const genuine = "tg1.a._hsonKtpjZCbZGl1DBq-VapQcLguoOfbCcvfEXeT4iEh9wSHhU7qIVYofe244VzXfJZNEOP583MzOUEjv0J4rBRhSGI2iSlEc_5I8rQxEvI"

// Whatever a client makes of a state, it does not open, unless it is the one it
// was given.
func FuzzOpen(f *testing.F) {
	r := ring(f, key("a", 1), key("b", 2))
	f.Add(genuine)
	f.Add("")
	f.Add("tg1.")
	f.Add("tg1.a.")
	f.Add("tg1.b." + genuine[len("tg1.a."):])
	f.Add("tg1.a.AAAA")
	f.Add(genuine + "A")
	f.Add(genuine[:len(genuine)-1])
	f.Add(genuine + "=")
	f.Add("tg1.a.\n" + genuine[len("tg1.a."):])
	for i := range genuine {
		b := []byte(genuine)
		b[i] ^= 1
		f.Add(string(b))
	}
	f.Fuzz(func(t *testing.T, text string) {
		got, err := r.Open(text, mine)
		switch {
		case text == genuine:
			if err != nil || got != "c1" {
				t.Errorf("genuine: %q, %v", got, err)
			}
		case err == nil:
			t.Errorf("opened %q as %q", text, got)
		}
	})
}

// The digest takes any JSON, and does not depend on how it is written.
func FuzzDigest(f *testing.F) {
	f.Add(`{"a":[1,{"b":"c"}],"d":null}`)
	f.Add(`[]`)
	f.Add(`"\ud83d\ude00"`)
	f.Fuzz(func(t *testing.T, text string) {
		msg, err := jsonrpc.Parse([]byte(`{"jsonrpc":"2.0","id":1,"method":"m","params":{"v":` + text + `}}`))
		if err != nil {
			return
		}
		v, _ := jsonrpc.Get(msg.Params, "v")
		var spaced bytes.Buffer
		if err := json.Indent(&spaced, v, " ", "\t"); err != nil {
			return
		}
		if sealed.Digest(v) != sealed.Digest(spaced.Bytes()) {
			t.Errorf("%q differs when indented", v)
		}
	})
}

// A binding is made only for a state that may open.
func TestMayOpen(t *testing.T) {
	r := ring(t, key("a", 1))
	for text, may := range map[string]bool{
		genuine: true, seal(t, r): true, "": false, "tg1.a.": false, "tg1.a.AAAA": false, "tg1.b." + genuine[len("tg1.a."):]: false,
		genuine + "=": false, "tg1.a." + strings.Repeat("A", 20<<10): false,
	} {
		if r.MayOpen(text) != may {
			t.Errorf("%.40s: %v", text, !may)
		}
	}
}
