package e2e

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"taskgate/internal/proc"
	"taskgate/internal/wiretest"
)

// block is a piece of a page that is to be typed.
type block struct{ section, language, text string }

var fenced = regexp.MustCompile("(?ms)^(?:## ([^\n]+)$|```(sh|yaml)\n(.*?)^```$)")

// blocksOf are the blocks of a page, in order.
func blocksOf(t *testing.T, page string) (all []block) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", page))
	if err != nil {
		t.Fatal(err)
	}
	section := ""
	for _, m := range fenced.FindAllStringSubmatch(string(text), -1) {
		if m[1] != "" {
			section = m[1]
		} else {
			all = append(all, block{section, m[2], m[3]})
		}
	}
	return all
}

// follower does what a section of the page says, in a folder of its own.
type follower struct {
	t       *testing.T
	dir     string
	names   *strings.Replacer // addresses of the page, and where that is here
	addr    string
	env     []string
	gateway *proc.Process
	answers int // that were as the page says
}

// do follows one block: a configuration is served, and of a command the status that stands behind it comes.
func (f *follower) do(b block) {
	f.t.Helper()
	text := f.names.Replace(b.text)
	if b.language == "yaml" {
		file := filepath.Join(f.dir, "taskgate.yaml")
		if err := os.WriteFile(file, []byte(fmt.Sprintf("listen: %s\n%s", f.addr, text)), 0o600); err != nil {
			f.t.Fatal(err)
		}
		if f.gateway != nil {
			f.gateway.Stop(patience)
		}
		f.gateway = start(f.t, f.addr, proc.Command{Name: "taskgate", Path: filepath.Join(bin, "taskgate"), Dir: f.dir, Args: []string{"serve", "--config", "taskgate.yaml"}})
		return
	}
	if !strings.Contains(text, "sh hello ") && !strings.Contains(text, "sh hello\n") {
		f.run(text)
		return
	}
	for line := range strings.Lines(text) {
		command, want, ok := strings.Cut(line, "#")
		if got := f.run(command); !ok || strings.TrimSpace(got) != strings.TrimSpace(want) {
			f.t.Errorf("%s: %s gives %s", b.section, strings.TrimSpace(line), got)
			continue
		}
		f.answers++
	}
}

func (f *follower) run(command string) string {
	f.t.Helper()
	var out bytes.Buffer
	cmd := exec.CommandContext(f.t.Context(), "sh", "-euc", command)
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = f.dir, append(os.Environ(), f.env...), &out, &out
	if err := cmd.Run(); err != nil {
		f.t.Fatalf("%s: %v\n%s", command, err, &out)
	}
	return out.String()
}

// TestSignInPages follows the sections of docs/sign-in.md to the letter, each in an empty folder, with a server and an
// issuer as the section says. Only the addresses are those of the test.
func TestSignInPages(t *testing.T) {
	t.Parallel()
	for _, tool := range []string{"curl", "openssl"} {
		_, err := exec.LookPath(tool)
		need(t, err == nil, tool)
	}
	wants := map[string]struct {
		answers int
		protect func(*http.Request) bool // the server takes the request; nil for all
	}{
		"An open gateway": {1, nil}, "Keys": {2, nil}, "Tokens": {2, nil}, "A proxy that signs in": {2, nil},
		"In the server's place":    {3, func(r *http.Request) bool { return r.Host == "files.example.com" }},
		"At an address of its own": {4, func(*http.Request) bool { return true }},
	}
	blocks, followed := blocksOf(t, "sign-in.md"), map[string]bool{}
	for _, b := range blocks[1:] {
		want, ok := wants[b.section]
		if !ok {
			t.Errorf("the section %q is followed by nobody", b.section)
		}
		if followed[b.section] || !ok {
			continue
		}
		followed[b.section] = true
		t.Run(b.section, func(t *testing.T) {
			t.Parallel()
			f := newFollower(t, want.protect)
			f.run(f.names.Replace(blocks[0].text))
			for _, mine := range blocks {
				if mine.section == b.section {
					f.do(mine)
				}
			}
			if f.answers != want.answers {
				t.Errorf("%d commands were as the page says, and not %d", f.answers, want.answers)
			}
		})
	}
	for section := range wants {
		if !followed[section] {
			t.Errorf("the page has no section %q", section)
		}
	}
}

// newFollower has a server, which wants a good token of the issuer if protect is not nil, and the tokens that the
// page names.
func newFollower(t *testing.T, protect func(*http.Request) bool) *follower {
	t.Helper()
	f := &follower{t: t, dir: t.TempDir(), addr: freeAddr(t)}
	issuer := wiretest.NewIssuer(t, "")
	server, good := newPeer("files"), map[string]bool{}
	addWords(server, "write_file", func(context.Context, *sdk.CallToolRequest) string { return "" })
	mcp := streamable(server, nil)
	local := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Host = "127.0.0.1" // the SDK takes no other at this address
		mcp.ServeHTTP(w, r)
	})
	url := guard(t, issuer.URL, local, func(r *http.Request) (int, string) {
		if token := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "); protect != nil && !(good[token] && protect(r)) {
			return http.StatusUnauthorized, ""
		}
		return http.StatusOK, ""
	})
	token := issuer.Token("alice", map[string]any{"aud": "http://" + f.addr + "/mcp", "scope": "mcp:use"})
	opaque := issuer.Opaque("alice", map[string]any{"aud": url})
	good[token], good[opaque] = true, true
	f.names = strings.NewReplacer(
		"http://127.0.0.1:3001/mcp", url, "127.0.0.1:8080", f.addr,
		"https://gateway.example.com", "http://"+f.addr, "https://login.example.com", issuer.URL,
	)
	f.env = []string{"TOKEN=" + token, "OPAQUE=" + opaque, "SECRET=" + wiretest.IntrospectionSecret, "PATH=" + bin + ":" + os.Getenv("PATH")}
	return f
}
