// Package interpreter runs the scripts of a store in a miniredis. miniredis makes a Lua state with all its libraries for
// each call of a script (v2.40.0), which costs as much as the script. An [Interpreter] keeps one state, in which each
// script is compiled once. It has what these scripts use: redis.call, redis.pcall, and the libraries for strings, tables
// and numbers. Commands of a script are those of the miniredis.
package interpreter

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
	lua "github.com/yuin/gopher-lua"
)

// Interpreter runs scripts one after the other, each as one step of its miniredis.
type Interpreter struct {
	redis   *miniredis.Miniredis
	server  *server.Server
	scripts map[string]string // sources by hash

	// The lock of the miniredis guards all below.
	state    *lua.LState
	compiled map[string]*lua.LFunction // by hash
	peer     *server.Peer              // has the commands of scripts; the miniredis takes no lock for them
	reply    bytes.Buffer              // what the peer was answered
	parser   *bufio.Reader             // reads reply
}

// keptReply is the most bytes of memory for replies that are kept between commands.
const keptReply = 64 << 10

// New makes an Interpreter for scripts, which are sources by their hash. It sets the hook of the miniredis, which has
// begun to serve; the caller sets its own one afterwards.
func New(redis *miniredis.Miniredis, scripts map[string]string) (*Interpreter, error) {
	in := &Interpreter{redis: redis, server: redis.Server(), scripts: scripts, compiled: make(map[string]*lua.LFunction)}
	in.peer = server.NewPeer(bufio.NewWriter(&in.reply))
	in.parser = bufio.NewReader(&in.reply)
	// Only a command of a script has the context that says so. This script shows it to the hook.
	in.server.SetPreHook(func(p *server.Peer, cmd string, _ ...string) bool {
		if cmd == "PING" {
			in.peer.Ctx = p.Ctx
		}
		return false
	})
	in.server.Dispatch(server.NewPeer(bufio.NewWriter(new(bytes.Buffer))), []string{"EVAL", "return redis.call('PING')", "0"})
	in.server.SetPreHook(nil)
	if in.peer.Ctx == nil {
		return nil, errors.New("this miniredis does not show commands of scripts to its hook")
	}
	in.openState()
	return in, nil
}

func (in *Interpreter) openState() {
	in.state = lua.NewState(lua.Options{SkipOpenLibs: true})
	for name, open := range map[string]lua.LGFunction{
		lua.BaseLibName: lua.OpenBase, lua.TabLibName: lua.OpenTable, lua.StringLibName: lua.OpenString, lua.MathLibName: lua.OpenMath,
	} {
		in.state.Push(in.state.NewFunction(open))
		in.state.Push(lua.LString(name))
		in.state.Call(1, 0)
	}
	in.state.SetGlobal("redis", in.state.SetFuncs(in.state.NewTable(), map[string]lua.LGFunction{"call": in.call, "pcall": in.pcall}))
	in.setList("KEYS", nil)
	in.setList("ARGV", nil)
	// What one script leaves behind, another one would find.
	refuse := in.state.NewFunction(func(l *lua.LState) int {
		l.RaiseError("a script must not make the global variable %q", l.CheckString(2))
		return 0
	})
	globals := in.state.NewTable()
	globals.RawSetString("__newindex", refuse)
	in.state.SetMetatable(in.state.Get(lua.GlobalsIndex), globals)
}

// Has reports whether there is a script with this hash.
func (in *Interpreter) Has(hash string) bool { return in.scripts[hash] != "" }

// Run runs a script. line is the hash, the number of keys, the keys and the arguments, as in EVALSHA. It returns the
// reply as it is sent.
func (in *Interpreter) Run(line []string) string {
	in.redis.Lock()
	defer in.redis.Unlock()
	var out bytes.Buffer
	p := server.NewPeer(bufio.NewWriter(&out))
	if value, err := in.evaluate(line); err != nil {
		p.WriteError("ERR " + strings.Map(onOneLine, err.Error()))
	} else {
		write(p, value)
	}
	p.Flush()
	return out.String()
}

// onOneLine replaces the ends of lines, which an error in a reply cannot have.
func onOneLine(r rune) rune {
	if r == '\r' || r == '\n' {
		return ' '
	}
	return r
}

// Do runs one command as the only one of a script, and returns the reply as it is sent.
func (in *Interpreter) Do(command []string) string {
	in.redis.Lock()
	defer in.redis.Unlock()
	defer in.forgetReply()
	in.dispatch(command)
	return in.reply.String()
}

// dispatch has the miniredis run a command of a script. Its reply is in in.reply.
func (in *Interpreter) dispatch(command []string) {
	in.server.Dispatch(in.peer, command)
	in.peer.Flush()
}

// forgetReply makes room for the next one.
func (in *Interpreter) forgetReply() {
	in.parser.Reset(&in.reply)
	if in.reply.Reset(); in.reply.Cap() > keptReply {
		in.reply = bytes.Buffer{}
	}
}

// evaluate runs a script and returns its value. The lock of the miniredis is held.
func (in *Interpreter) evaluate(line []string) (lua.LValue, error) {
	if len(line) < 2 {
		return nil, errors.New("a script needs its number of keys")
	}
	keys, err := strconv.Atoi(line[1])
	if err != nil || keys < 0 || keys > len(line)-2 {
		return nil, fmt.Errorf("a script with %q keys has %d words", line[1], len(line)-2)
	}
	body := in.compiled[line[0]]
	if body == nil {
		if body, err = in.state.Load(strings.NewReader(in.scripts[line[0]]), "script"); err != nil {
			return nil, err
		}
		in.compiled[line[0]] = body
	}
	in.setList("KEYS", line[2:2+keys])
	in.setList("ARGV", line[2+keys:])
	defer in.setList("KEYS", nil)
	defer in.setList("ARGV", nil)
	if err := in.state.CallByParam(lua.P{Fn: body, NRet: 1, Protect: true}); err != nil {
		return nil, err
	}
	defer in.state.Pop(1)
	return in.state.Get(-1), nil
}

func (in *Interpreter) setList(name string, words []string) {
	list := in.state.CreateTable(len(words), 0)
	for _, word := range words {
		list.Append(lua.LString(word))
	}
	in.state.SetGlobal(name, list)
}

// call is redis.call: an error ends the script.
func (in *Interpreter) call(l *lua.LState) int {
	value, err := in.command(l)
	if err != nil {
		l.Error(lua.LString(err.Error()), 1)
		return 0
	}
	l.Push(value)
	return 1
}

// pcall is redis.pcall: an error is a value.
func (in *Interpreter) pcall(l *lua.LState) int {
	value, err := in.command(l)
	if err != nil {
		value = tableOf("err", err.Error())
	}
	l.Push(value)
	return 1
}

// command runs the command on the stack of a script.
func (in *Interpreter) command(l *lua.LState) (lua.LValue, error) {
	words := make([]string, l.GetTop())
	for i := range words {
		switch word := l.Get(i + 1).(type) {
		case lua.LString:
			words[i] = string(word)
		case lua.LNumber:
			words[i] = word.String()
		default:
			return nil, errors.New("ERR the words of a command must be strings or numbers")
		}
	}
	if len(words) == 0 {
		return nil, errors.New("ERR a command needs a name")
	}
	defer in.forgetReply()
	in.dispatch(words)
	reply, err := server.ParseReply(in.parser)
	if err != nil {
		return nil, err
	}
	return read(l, reply), nil
}

// read is a reply as a script has it.
func read(l *lua.LState, reply any) lua.LValue {
	switch reply := reply.(type) {
	case int:
		return lua.LNumber(reply)
	case string:
		return lua.LString(reply)
	case server.Simple:
		return tableOf("ok", string(reply))
	case []any:
		list := l.CreateTable(len(reply), 0)
		for i, one := range reply {
			list.RawSetInt(i+1, read(l, one))
		}
		return list
	}
	return lua.LFalse // nil
}

func tableOf(name, text string) lua.LValue {
	t := new(lua.LTable)
	t.RawSetString(name, lua.LString(text))
	return t
}

// write answers with the value of a script.
func write(p *server.Peer, value lua.LValue) {
	switch v := value.(type) {
	case lua.LString:
		p.WriteBulk(string(v))
	case lua.LNumber:
		p.WriteInt(int(v))
	case *lua.LTable:
		if text, ok := v.RawGetString("err").(lua.LString); ok {
			p.WriteError(string(text))
			return
		}
		if text, ok := v.RawGetString("ok").(lua.LString); ok {
			p.WriteInline(string(text))
			return
		}
		n := 0
		for v.RawGetInt(n+1) != lua.LNil {
			n++
		}
		p.WriteLen(n)
		for i := range n {
			write(p, v.RawGetInt(i+1))
		}
	default:
		if value == lua.LTrue {
			p.WriteInt(1)
		} else {
			p.WriteNull()
		}
	}
}
