// Package peers is what taskgate is compared with: one file for each peer, with its pinned version, how it is
// installed, and the settings that its own documents recommend for a tool that takes long.
package peers

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Way says on which side of a peer the client and the server are.
type Way string

// The ways in which peers stand between a client and a server.
const (
	InFront      Way = "in front of a server over HTTP"
	AroundServer Way = "starts a server over stdio, serves HTTP"
	ForClient    Way = "started by its client over stdio, calls a server over HTTP"
	NoPeer       Way = "no gateway"
)

// Peer is a program that stands between clients and servers, or none.
type Peer struct {
	Name     string   // as in the tables
	Version  string   // pinned; of Debian's packages it is the installed one
	Way      Way      // which of Client and Server below it gets
	Go       string   // the package of the Go module proxy that it is built from
	Module   string   // the module of that package
	NPM      string   // its npm package
	Debian   string   // its Debian package
	Program  string   // where it is installed, under the directory of installed peers, or a name in PATH
	Settings string   // what is set beside its defaults, and why, for the page
	Docs     []string // where its own documents say so
	Words    []Word   // what it says itself of what it does not do
	SSE      bool     // it serves clients over HTTP+SSE alone
	Path     string   // of the URL that clients use
	Start    func(Setup) (Program, error)
}

// Word is where a peer says of itself, or shows in its source, that it does not do something.
type Word struct {
	Features []string // the begin of each feature's name; with ", 2026" at its end for clients of 2026-07-28 alone
	URL      string
}

// WordsOn is where the peer speaks of a feature, for a client of 2026-07-28 or an older one; "" if it does not.
func (p Peer) WordsOn(feature string, modern bool) string {
	for _, w := range p.Words {
		for _, f := range w.Features {
			name, only := strings.CutSuffix(f, ", 2026")
			if strings.HasPrefix(feature, name) && (modern || !only) {
				return w.URL
			}
		}
	}
	return ""
}

// Setup is what a peer is started with.
type Setup struct {
	Listen    string   // the loopback address that it serves on
	Server    string   // the URL of the server behind it
	Command   []string // the program that is a server over stdio
	Dir       string   // a directory of its own
	Installed string   // where peers are installed
	Redis     string   // the URL of a store that replicas share, if not empty
}

// Program is how a peer is started.
type Program struct {
	Path string
	Args []string
	Env  []string
}

// All are the peers, in the order of the tables.
func All() []Peer {
	return []Peer{direct, bare, nginx, haproxy, taskgate, tbxark, vmcp, supergateway, mcpProxy, mcpHub, civic, mcpRemote}
}

// Host and port of Setup.Listen.
func (s Setup) port() string {
	_, port, _ := cutAddr(s.Listen)
	return port
}

func cutAddr(addr string) (host, port string, ok bool) {
	for i := len(addr) - 1; i >= 0; i-- {
		if addr[i] == ':' {
			return addr[:i], addr[i+1:], true
		}
	}
	return addr, "", false
}

// write writes a configuration file into the peer's directory.
func (s Setup) write(name, format string, args ...any) (string, error) {
	path := filepath.Join(s.Dir, name)
	return path, os.WriteFile(path, fmt.Appendf(nil, format, args...), 0o600)
}

// Installation is where a peer of npm is installed.
func (p Peer) Installation(installed string) string {
	switch {
	case p.NPM != "":
		return filepath.Join(installed, "npm", p.Name)
	case p.Go != "":
		return filepath.Join(installed, p.Program)
	default:
		return ""
	}
}

// node runs a script of an installed npm package.
func (s Setup) node(p Peer, script string, args ...string) Program {
	path := filepath.Join(p.Installation(s.Installed), "node_modules", filepath.FromSlash(script))
	return Program{Path: "node", Args: append([]string{path}, args...), Env: []string{"HOME=" + s.Dir, "NO_UPDATE_NOTIFIER=1"}}
}
