package interpreter_test

import (
	"bufio"
	"bytes"
	"strings"
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"

	"taskgate/redisstore/interpreter"
)

// start starts a miniredis with an interpreter of these scripts, which are their own hashes.
func start(t *testing.T, scripts ...string) (*miniredis.Miniredis, *interpreter.Interpreter) {
	t.Helper()
	redis := miniredis.RunT(t)
	sources := make(map[string]string)
	for _, source := range scripts {
		sources[source] = source
	}
	in, err := interpreter.New(redis, sources)
	if err != nil {
		t.Fatal(err)
	}
	return redis, in
}

// eval is what the miniredis itself answers to a script.
func eval(redis *miniredis.Miniredis, line ...string) string {
	var out bytes.Buffer
	p := server.NewPeer(bufio.NewWriter(&out))
	redis.Server().Dispatch(p, append([]string{"EVAL"}, line...))
	p.Flush()
	return out.String()
}

// Each script has the same answer, and the same effect, as in the miniredis itself, also when it runs again.
func TestScriptsAsInTheEngine(t *testing.T) {
	scripts := []string{
		"return { KEYS[1], ARGV[1], ARGV[2], #KEYS, #ARGV }",
		"redis.call('HSET', KEYS[1], 'a', ARGV[1], 'b', 7) return redis.call('HGETALL', KEYS[1])",
		"redis.call('SET', KEYS[1], ARGV[1]) return redis.call('SET', KEYS[1], 'x', 'NX')",
		"return redis.call('SET', KEYS[1], ARGV[1])",
		"return redis.call('GET', 'nothing')",
		"return { redis.call('GET', 'nothing') or '', redis.call('EXISTS', KEYS[1]) }",
		"return redis.call('HMGET', 'nothing', 'a', 'b')",
		"redis.call('RPUSH', KEYS[1], ARGV[1], 2.5, 1e15) return redis.call('LRANGE', KEYS[1], 0, -1)",
		"redis.pcall('XADD', KEYS[1], '5-1', 'a', 'b') return redis.call('XRANGE', KEYS[1], '-', '+')",
		"return redis.call('ZADD', KEYS[1], 3, 'member')",
		"return 3.9", "return true", "return false", "return nil", "return {}", "return { 1, { 2, 'three' }, nil, 4 }", "local x = 1",
		"return { err = 'ODD error' }", "return { ok = 'FINE' }",
		"redis.call('SET', KEYS[1], '') local r = redis.pcall('HGET', KEYS[1], 'a') return { r.err, tostring(r.ok) }",
		"return string.format('%d %s', math.max(1, 2), table.concat({ 'a', 'b' }, '-'))",
	}
	theirs, _ := start(t)
	ours, in := start(t, scripts...)
	for range 2 {
		for _, script := range scripts {
			words := []string{script, "1", "key " + script, "one", "two\r\nlines"}
			want, got := eval(theirs, words...), in.Run(words)
			if got != want {
				t.Errorf("%s: %q, want %q", script, got, want)
			}
		}
	}
	if ours.Dump() != theirs.Dump() {
		t.Errorf("have\n%s\nwant\n%s", ours.Dump(), theirs.Dump())
	}
}

// A script that fails answers with an error, and leaves nothing to the next one.
func TestScriptsThatFail(t *testing.T) {
	const fine = "return { #KEYS, #ARGV, tostring(left) }"
	failing := map[string]string{
		"redis.call('SET', KEYS[1], 'x') redis.call('HGET', KEYS[1], 'a')": "WRONGTYPE",
		"redis.call('NONESUCH')": "NONESUCH",
		"redis.call({})":         "strings or numbers",
		"redis.call()":           "needs a name",
		"left = 1":               "global variable",
		"return nothing.x":       "nil",
		"return (":               "at EOF",
	}
	scripts := []string{fine}
	for script := range failing {
		scripts = append(scripts, script)
	}
	_, in := start(t, scripts...)
	for script, why := range failing {
		if got := in.Run([]string{script, "1", "key", "argument"}); !strings.HasPrefix(got, "-ERR ") || !strings.Contains(got, why) || strings.Count(got, "\n") != 1 {
			t.Errorf("%s: %q", script, got)
		}
		if got := in.Run([]string{fine, "0"}); got != "*3\r\n:0\r\n:0\r\n$3\r\nnil\r\n" {
			t.Errorf("after %s: %q", script, got)
		}
	}
	for _, line := range [][]string{{fine}, {fine, "x"}, {fine, "2", "key"}, {fine, "-1"}} {
		if got := in.Run(line); !strings.HasPrefix(got, "-ERR ") {
			t.Errorf("%v: %q", line, got)
		}
	}
}

// A single command is answered as a client is, and is one of a script for the hook of the engine.
func TestDo(t *testing.T) {
	redis, in := start(t)
	names := []string{}
	redis.Server().SetPreHook(func(p *server.Peer, cmd string, _ ...string) bool {
		names = append(names, p.ClientName+cmd)
		return false
	})
	large := strings.Repeat("x", 100_000)
	for _, one := range [][2]string{{in.Do([]string{"SET", "key", large}), "+OK\r\n"}, {in.Do([]string{"GET", "key"}), "$100000\r\n" + large + "\r\n"}, {in.Do([]string{"DEL", "key"}), ":1\r\n"}} {
		if one[0] != one[1] {
			t.Errorf("%.50q", one[0])
		}
	}
	if got := strings.Join(names, " "); got != "SET GET DEL" {
		t.Error(got)
	}
}
