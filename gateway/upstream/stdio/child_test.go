package stdio

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"taskgate/gateway/upstream/transporttest"
	"taskgate/shim/shimtest/sdkpeer"
)

// children are the servers of the tests, each a process that runs one of these.
var children = map[string]func(){
	"plain":   func() { (&plain{}).serve() },
	"fragile": func() { (&plain{fragile: true}).serve() },
	"silent":  func() { (&plain{silent: true}).serve() },
	"greeting": func() {
		fmt.Println("Server started!")
		fmt.Println()
		(&plain{}).serve()
	},
	"stubborn": func() {
		signal.Ignore(syscall.SIGTERM)
		(&plain{stays: true}).serve()
	},
	"sleeper": func() {
		signal.Ignore(syscall.SIGTERM)
		<-time.After(time.Hour)
	},
	"broken": func() {
		fmt.Fprintln(os.Stderr, "reading settings\n\x1b[31mTOKEN is not set")
		os.Exit(3)
	},
	"late": func() { // in taking up its work
		<-time.After(time.Second)
		(&plain{modern: true}).serve()
	},
	"locked": func() {
		lock := os.Getenv("LOCK")
		if err := os.Mkdir(lock, 0o700); err != nil {
			fmt.Fprintln(os.Stderr, "another one runs")
			os.Exit(1)
		}
		(&plain{}).serve()
		fmt.Fprintln(os.Stderr, "ending")
		<-time.After(300 * time.Millisecond)
		_ = os.Remove(lock)
	},
	"sdk": sdkChild,
	"suite": func() {
		transporttest.ServeStdio(os.Stdin, os.Stdout, killSelf)
	},
	"modern":       func() { (&plain{modern: true}).serve() },
	"other world":  func() { (&plain{hello: `{"protocolVersion":"1999-01-01","capabilities":{}}`}).serve() },
	"not a number": func() { (&plain{hello: `{"protocolVersion":"2025-11-25","capabilities":{"x":NaN}}`}).serve() },
}

// plain is a server that does what the tools say, and little else.
type plain struct {
	fragile bool   // it dies of an unknown first message
	silent  bool   // it does not answer before the handshake
	stays   bool   // it goes on when its input is closed
	modern  bool   // it knows server/discover, and no initialize
	hello   string // its answer to initialize; "" for a good one

	mu      sync.Mutex
	greeted bool
}

// message is one that a plain server gets.
type message struct {
	ID     json.RawMessage
	Method string
	Params struct {
		Name      string
		Arguments struct {
			Key, Text string
			N         int
		}
		RequestID json.RawMessage
	}
}

func (p *plain) serve() {
	in := bufio.NewReader(os.Stdin)
	for {
		line, err := in.ReadBytes('\n')
		if err != nil {
			break
		}
		var m message
		if err := json.Unmarshal(line, &m); err != nil {
			fmt.Fprintln(os.Stderr, "unreadable:", err)
			os.Exit(4)
		}
		if m.Method == "tools/call" && m.Params.Name == "deaf" {
			<-time.After(time.Duration(m.Params.Arguments.N) * time.Millisecond)
			p.text(m, "ok")
			continue
		}
		p.handle(m)
	}
	if p.stays {
		<-time.After(time.Hour)
	}
}

func (p *plain) handle(m message) {
	switch {
	case m.Method == "initialize" && !p.modern:
		p.greeted = true
		p.result(m, cmp.Or(p.hello, `{"protocolVersion":"2025-11-25","capabilities":{"tools":{"listChanged":true}},"serverInfo":{"name":"plain","version":"1"}}`))
	case m.Method == "server/discover" && p.modern:
		p.result(m, `{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{"tools":{}}}`)
	case m.Method == "subscriptions/listen" && p.modern: // which it ends at once
		meta := fmt.Sprintf(`"_meta":{"io.modelcontextprotocol/subscriptionId":%s}`, m.ID)
		p.say(`{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{"notifications":{"toolsListChanged":true},` + meta + `}}`)
		p.say(`{"jsonrpc":"2.0","method":"notifications/tools/list_changed","params":{` + meta + `}}`)
		p.say(fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%s}}`, m.ID))
	case m.Method == "notifications/cancelled":
		fmt.Fprintf(os.Stderr, "cancelled %s\n", m.Params.RequestID)
	case strings.HasPrefix(m.Method, "notifications/"):
	case !p.greeted && p.fragile:
		fmt.Fprintln(os.Stderr, "expected initialize")
		os.Exit(1)
	case !p.greeted && p.silent:
	case m.Method == "tools/call":
		go p.tool(m)
	default:
		p.say(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"unknown"}}`, m.ID))
	}
}

func (p *plain) say(line string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, _ = io.WriteString(os.Stdout, line+"\n")
}

func (p *plain) result(m message, result string) {
	p.say(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":%s}`, m.ID, result))
}

func (p *plain) text(m message, text string) {
	quoted, _ := json.Marshal(text)
	p.result(m, fmt.Sprintf(`{"resultType":"complete","content":[{"type":"text","text":%s}]}`, quoted))
}

func (p *plain) tool(m message) {
	a := m.Params.Arguments
	switch m.Params.Name {
	case "echo":
		p.text(m, a.Text)
	case "pid":
		p.text(m, fmt.Sprint(os.Getpid()))
	case "environment":
		p.text(m, strings.Join(os.Environ(), " "))
	case "arguments":
		all, _ := json.Marshal(os.Args[1:])
		p.text(m, string(all))
	case "directory":
		dir, _ := os.Getwd()
		p.text(m, dir)
	case "wait":
		p.say(fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%s,"progress":1,"message":"begun"}}`, m.ID))
	case "die":
		fmt.Fprintln(os.Stderr, "out of cheese")
		os.Exit(3)
	case "be killed":
		killSelf()
	case "fork":
		c := exec.Command(os.Args[0])
		c.Env = append(os.Environ(), childVar+"=sleeper")
		c.Stdout, c.Stderr = os.Stdout, os.Stderr
		if err := c.Start(); err != nil {
			p.text(m, err.Error())
			return
		}
		p.text(m, fmt.Sprint(c.Process.Pid))
	case "orphan": // that ends soon
		said, err := exec.Command("/bin/sh", "-c", "sleep 0.05 >/dev/null & echo $!").Output()
		if err != nil {
			said = []byte(err.Error())
		}
		p.text(m, strings.TrimSpace(string(said)))
	case "line": // that never ends
		for {
			fmt.Print(strings.Repeat("x", 64<<10))
		}
	case "nonsense":
		for range 1000 {
			p.say("nonsense {")
		}
		p.text(m, "ok")
	case "errors":
		out := bufio.NewWriter(os.Stderr)
		for i := range 20_000 {
			fmt.Fprintln(out, "line", i, strings.Repeat("x", 100))
		}
		_ = out.Flush()
		p.text(m, "ok")
	case "close output":
		fmt.Fprintln(os.Stderr, "tired")
		os.Stdout.Close()
	case "close input":
		os.Stdin.Close()
		p.text(m, "ok")
	case "once": // as a program that is made for one call
		p.text(m, "ok")
		os.Exit(0)
	case "announce":
		p.say(`{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`)
		p.text(m, "ok")
	}
}

// sdkChild is a server of the Go SDK with the tools of the suite. What they do is noted in
// the directory SUITE_DIR.
func sdkChild() {
	note := func(what string) func(string) {
		return func(key string) {
			f, err := os.OpenFile(filepath.Join(os.Getenv("SUITE_DIR"), what+"-"+key), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
			if err == nil {
				_, _ = f.WriteString("x")
				_ = f.Close()
			}
		}
	}
	srv := sdkpeer.New(sdkpeer.Options{Modern: os.Getenv("SUITE_ERA") == "modern", Began: note("ran"), Cancelled: note("gone")})
	if err := srv.Run(context.Background(), &mcp.StdioTransport{}); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
}
