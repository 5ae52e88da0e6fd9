package redisstore

import (
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"taskgate/shim"
)

//go:embed lua
var lua embed.FS

// The scripts. The top of each file in lua documents its script.
var (
	createScript  = newScript("create")
	applyScript   = newScript("questions", "apply")
	touchScript   = newScript("touch")
	adoptScript   = newScript("adopt")
	beatScript    = newScript("beat")
	beatsScript   = newScript("beats")
	forgetScript  = newScript("forget")
	indexScript   = newScript("index")
	pauseScript   = newScript("pause")
	pruneScript   = newScript("prune")
	rerunScript   = newScript("rerun")
	resumeScript  = newScript("resume")
	runningScript = newScript("running")

	sessionEnterScript  = newScript("session_enter")
	sessionLeaveScript  = newScript("session_leave")
	sessionPutScript    = newScript("session_put")
	sessionEndScript    = newScript("session_end")
	sessionSweepScript  = newScript("session_sweep")
	sessionSignalScript = newScript("session_signal")
	sessionLogScript    = newScript("session_log")
	sessionSinceScript  = newScript("session_since")

	repeatNoteScript   = newScript("repeat_note")
	repeatTakeScript   = newScript("repeat_take")
	repeatExpireScript = newScript("repeat_expire")
	repeatResumeScript = newScript("repeat_resume")
	repeatTellScript   = newScript("repeat_tell")

	upstreamDueScript = newScript("upstream_due")
	upstreamEndScript = newScript("upstream_end")
	upstreamUseScript = newScript("upstream_use")
)

// The codes that begin the reply of a script; see lua/common.lua.
const (
	codeOK     = "ok"
	codeRenew  = "renew"
	codeAgain  = "again"
	codeNone   = "none"
	codeFinal  = "final"
	codeLost   = "lost"
	codeGap    = "gap"
	codeTaken  = "taken"
	codeMoved  = "moved"
	codeSkip   = "skip"
	codeUnread = "unread"
	codeFull   = "full"
	codeHeld   = "held"
	codeHas    = "has"
)

// sources has the scripts by their hash.
var sources = map[string]string{}

// script is Lua that Redis keeps under its hash.
type script struct{ source, sha string }

// newScript puts the field names and the common functions before the files of a script.
func newScript(names ...string) *script {
	var b strings.Builder
	fmt.Fprintf(&b, "local format = %d\n", format)
	fmt.Fprintf(&b, "local summary = { '%s' }\n", strings.Join(summaryFields, "', '"))
	for _, name := range append([]string{"common"}, names...) {
		text, err := lua.ReadFile("lua/" + name + ".lua")
		if err != nil {
			panic(err)
		}
		b.Write(text)
	}
	sc := scriptOf(b.String())
	sources[sc.sha] = sc.source
	return sc
}

func scriptOf(source string) *script {
	return &script{source: source, sha: redis.NewScript(source).Hash()}
}

// processor is a client, a single connection, or a pipeliner.
type processor interface {
	Process(ctx context.Context, cmd redis.Cmder) error
}

// runOn runs a script by its hash, and by its text if Redis has yet to learn it. The reply is a
// list of strings that begins with a code; nil reads as "".
func (sc *script) runOn(ctx context.Context, p processor, keys []string, args *argv) ([]string, error) {
	cmd := sc.toCommand(ctx, keys, args, false)
	err := p.Process(ctx, cmd)
	if isUnknownScript(err) {
		cmd = sc.toCommand(ctx, keys, args, true)
		err = p.Process(ctx, cmd)
	}
	if err != nil {
		return nil, err // a pipeliner may still have the command
	}
	if len(cmd.Val()) == 0 {
		return nil, errors.New("script answered nothing")
	}
	return cmd.Val(), nil
}

// toCommand makes the command that runs the script, by its hash or by its text.
func (sc *script) toCommand(ctx context.Context, keys []string, args *argv, text bool) *redis.StringSliceCmd {
	line := make([]any, 0, 3+len(keys)+len(args.list))
	if text {
		line = append(line, "eval", sc.source, len(keys))
	} else {
		line = append(line, "evalsha", sc.sha, len(keys))
	}
	for _, k := range keys {
		line = append(line, k)
	}
	return redis.NewStringSliceCmd(ctx, append(line, args.list...)...)
}

// isUnknownScript reports whether Redis lacks the script of a hash.
func isUnknownScript(err error) bool { return redis.HasErrorPrefix(err, "NOSCRIPT") }

// argv builds a script's arguments.
type argv struct{ list []any }

// add adds single values.
func (a *argv) add(values ...string) {
	for _, v := range values {
		a.list = append(a.list, v)
	}
}

// addFlag adds a boolean: "1", or "".
func (a *argv) addFlag(v bool) {
	if v {
		a.add("1")
	} else {
		a.add("")
	}
}

// addInt adds numbers.
func (a *argv) addInt(values ...int64) {
	for _, v := range values {
		a.list = append(a.list, strconv.FormatInt(v, 10))
	}
}

// addList adds a list, preceded by its length. Byte strings are not copied.
func addList[V ~string | ~[]byte](a *argv, values []V) {
	a.list = append(a.list, len(values))
	for _, v := range values {
		a.list = append(a.list, []byte(v))
	}
}

// fields is a list of names and values for HSET.
type fields struct{ list []any }

// set adds a field if it has a value: an absent field reads as "" as well.
func (f *fields) set(name, value string) {
	if value != "" {
		f.list = append(f.list, name, value)
	}
}

// setBytes is set for values that may be large, which it does not copy.
func (f *fields) setBytes(name string, value []byte) {
	if len(value) > 0 {
		f.list = append(f.list, name, value)
	}
}

// addFields adds fields as a list.
func (a *argv) addFields(f fields) {
	a.list = append(a.list, len(f.list))
	a.list = append(a.list, f.list...)
}

// The states of a stored question, as in lua/questions.lua.
const (
	stateOpen      = "open"
	stateAnswered  = "answered"
	stateTaken     = "taken"
	stateWithdrawn = "withdrawn"
)

// errPacked says that a field is malformed.
var errPacked = errors.New("malformed list of strings")

// pack appends strings, each as <length>:<bytes>. lua/questions.lua can read this form; it takes
// any bytes and escapes none.
func pack(b []byte, list ...string) []byte {
	for _, s := range list {
		b = strconv.AppendInt(b, int64(len(s)), 10)
		b = append(b, ':')
		b = append(b, s...)
	}
	return b
}

// unpack is the reverse. The strings share memory with s.
func unpack(s string) ([]string, error) {
	var list []string
	for s != "" {
		digits, rest, ok := strings.Cut(s, ":")
		n, err := strconv.Atoi(digits)
		if !ok || err != nil || n < 0 || n > len(rest) {
			return nil, errPacked
		}
		list, s = append(list, rest[:n]), rest[n:]
	}
	return list, nil
}

// encodeQuestions writes the questions of a new task.
func encodeQuestions(questions []shim.Question) string {
	var b []byte
	for _, q := range questions {
		b = pack(b, q.Key, q.Method, string(q.Params), "", stateOf(q), string(q.Answer), "")
	}
	return string(b)
}

func stateOf(q shim.Question) string {
	switch {
	case q.Taken:
		return stateTaken
	case q.Answer != nil:
		return stateAnswered
	case q.Withdraw:
		return stateWithdrawn
	default:
		return stateOpen
	}
}

// questions reads the questions of a record. Only those that the operation taker took are Taken; with "",
// those that any took.
func (r *row) questions(taker string) []shim.Question {
	list, err := unpack(r.text())
	if err != nil || len(list)%7 != 0 {
		r.err = errPacked
		return nil
	}
	var out []shim.Question
	for v := range slices.Chunk(list, 7) {
		q := shim.Question{Key: v[0], Method: v[1], Withdraw: v[4] == stateWithdrawn}
		q.Taken = v[4] == stateTaken && (taker == "" || taker == v[6])
		if v[2] != "" {
			q.Params = json.RawMessage(v[2])
		}
		if v[4] == stateTaken || v[4] == stateAnswered {
			q.Answer = json.RawMessage(v[5])
		}
		out = append(out, q)
	}
	return out
}

// encodeTrace writes a trace context, which trace reads.
func encodeTrace(trace map[string]string) string {
	var b []byte
	for _, k := range slices.Sorted(maps.Keys(trace)) {
		b = pack(b, k, trace[k])
	}
	return string(b)
}

func (r *row) trace() map[string]string {
	list, err := unpack(r.text())
	if err != nil || len(list)%2 != 0 {
		r.err = errPacked
		return nil
	}
	if len(list) == 0 {
		return nil
	}
	m := make(map[string]string, len(list)/2)
	for kv := range slices.Chunk(list, 2) {
		m[kv[0]] = kv[1]
	}
	return m
}
