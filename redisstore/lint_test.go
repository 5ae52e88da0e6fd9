package redisstore

import (
	"io/fs"
	"os"
	"regexp"
	"strings"
	"testing"

	"taskgate/shim"
)

// luaFiles are the scripts by name.
func luaFiles(t *testing.T) map[string]string {
	t.Helper()
	files := map[string]string{}
	names, err := fs.Glob(os.DirFS("lua"), "*.lua")
	must(t, err)
	for _, n := range names {
		b, err := os.ReadFile("lua/" + n)
		must(t, err)
		files[n] = string(b)
	}
	return files
}

var (
	redisCall = regexp.MustCompile(`redis\.p?call\(\s*([^,)]+)(?:,\s*([^,)]+))?`)
	pushCall  = regexp.MustCompile(`[^n] (?:push|changed)\(([^,)]+)`)
	// forbidden is what differs between Lua in Redis and in miniredis, or must not
	// be done to what users send.
	forbidden = regexp.MustCompile(`cjson|cmsgpack|struct\.|bit\.|tostring|math\.random|os\.|loadstring|redis\.log`)
	global    = regexp.MustCompile(`(?m)^(\w+) *=|^function `)
)

// A script touches the keys it is given and no others, or a cluster refuses it.
func TestScriptsTouchOnlyTheirKeys(t *testing.T) {
	t.Parallel()
	for name, text := range luaFiles(t) {
		for _, m := range redisCall.FindAllStringSubmatch(text, -1) {
			command, key := m[1], m[2]
			switch {
			case command == "'TIME'":
			case command == "'PUBLISH'" && (key == "events" || key == "inbox"): // from ARGV
			case regexp.MustCompile(`^KEYS\[(\d|i)\]$`).MatchString(key), key == "unpack(KEYS":
			case name == "common.lua" && key == "key": // see below
			default:
				t.Errorf("%s: %s", name, m[0])
			}
		}
		for _, m := range pushCall.FindAllStringSubmatch(text, -1) {
			if !strings.HasPrefix(m[1], "KEYS[") {
				t.Errorf("%s: a write to %s", name, m[1])
			}
		}
	}
}

// A script begins with what it takes and what it answers.
func TestScriptsAreDocumented(t *testing.T) {
	t.Parallel()
	for name, text := range luaFiles(t) {
		if m := forbidden.FindString(withoutComments(text)); m != "" {
			t.Errorf("%s uses %s", name, m)
		}
		if m := global.FindString(text); m != "" {
			t.Errorf("%s has a global: %s", name, m)
		}
		if name == "common.lua" || name == "questions.lua" {
			continue
		}
		header, _, _ := strings.Cut(text, "\n\n")
		for _, want := range []string{"-- " + strings.TrimSuffix(name, ".lua") + " ", "\n-- KEYS ", "\n-- ARGV ", "\n-- reply "} {
			if !strings.Contains("\n"+text[:min(len(text), len(header)+2000)], want) {
				t.Errorf("%s does not say %q", name, want)
			}
		}
	}
}

func withoutComments(lua string) string {
	return regexp.MustCompile(`(?m)--.*$`).ReplaceAllString(lua, "")
}

// The names that Go and Lua share.
func TestSharedNames(t *testing.T) {
	t.Parallel()
	all := ""
	for _, text := range luaFiles(t) {
		all += text
	}
	for _, code := range []string{
		codeOK, codeRenew, codeAgain, codeNone, codeFinal, codeLost, codeGap, codeTaken, codeMoved, codeSkip, codeUnread, codeFull, codeHeld, codeHas,
		stateOpen, stateAnswered, stateTaken, stateWithdrawn,
		fieldOp, fieldStatus, fieldVersion, fieldCreated, fieldUpdated, fieldTTL, fieldRetain, fieldVisible,
		fieldLease, fieldBatches, fieldQuestions, fieldUpstream,
	} {
		if !strings.Contains(all, "'"+code+"'") {
			t.Errorf("no script says %q", code)
		}
	}
}

// One task, one slot: keys and channels have the same hash tag, and only one.
func TestKeys(t *testing.T) {
	t.Parallel()
	k := keys{prefix: "tg"}
	id := shim.ID("a3000000-0000-4000-8000-000000000000")
	for got, want := range map[string]string{
		k.task(id):          "tg:{a3}:t:" + string(id),
		k.batches(id):       "tg:{a3}:p:" + string(id),
		k.events(id):        "tg:{a3}:ev:" + string(id),
		k.run("a3", "r{1}"): "tg:{a3}:run:r{1}",
		k.inbox("a3", "r"):  "tg:{a3}:in:r",
		k.replicas():        "tg:replicas",
		k.list("p:alice"):   "tg:{" + digest("p:alice") + "}:o",
	} {
		same(t, want, got)
	}
	same(t, 256, len(shards))
	same(t, "00 a3 ff", shards[0]+" "+shards[0xa3]+" "+shards[255])
	if k.list("p:alice") == k.list("s:alice") || strings.Contains(k.list("p:alice"), "alice") {
		t.Error("a list's key must tell nothing but which list it is")
	}
}
