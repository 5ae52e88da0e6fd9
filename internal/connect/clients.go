package connect

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Client is an MCP client whose configuration this package can write.
type Client struct {
	Name    string // on the command line
	Title   string // as its maker spells it
	file    func() (string, error)
	members []string // the names that lead to the servers in its file
	entry   func(Server) any
	isTOML  bool
	command func(Server) []string // the command of the client that does the same; nil for none
}

// Server is what a client is to reach: an address, or else a program that it starts.
type Server struct {
	Name    string   // in the client's file
	URL     string   // of Streamable HTTP
	Command []string // the program and its arguments, where URL is empty
}

// Entries, as the clients' own documentation and the tests of internal/agents have them (2026-11-28).
type (
	typed struct {
		Type string `json:"type"`
		URL  string `json:"url"`
	}
	plain struct {
		URL string `json:"url" toml:"url"`
	}
	httpURL struct {
		URL string `json:"httpUrl"`
	}
	program struct {
		Type    string   `json:"type,omitempty" toml:"-"`
		Command string   `json:"command" toml:"command"`
		Args    []string `json:"args" toml:"args"`
	}
	remote struct {
		Type    string `json:"type"`
		URL     string `json:"url"`
		Enabled bool   `json:"enabled"`
	}
	local struct {
		Type    string   `json:"type"`
		Command []string `json:"command"`
		Enabled bool     `json:"enabled"`
	}
)

// Clients are all that there are, in the order in which they are listed.
//
// Sources of the file names and members: code.claude.com/docs/en/mcp, modelcontextprotocol.io (Claude Desktop),
// code.visualstudio.com/docs/copilot/chat/mcp-servers, docs.cursor.com/context/mcp, developers.openai.com/codex/mcp,
// github.com/google-gemini/gemini-cli docs/tools/mcp-server.md, qwenlm.github.io/qwen-code-docs, opencode.ai/docs/mcp-servers.
var Clients = []Client{
	{
		Name: "claude-code", Title: "Claude Code", file: here(".mcp.json"), members: []string{"mcpServers"},
		entry: entryOf(func(url string) any { return typed{"http", url} }, ""), command: addToClaude,
	},
	{
		Name: "claude-desktop", Title: "Claude Desktop", file: configured("Claude", "claude_desktop_config.json"), members: []string{"mcpServers"},
		entry: func(s Server) any { return programOf(s.Command, "") },
	},
	{
		Name: "vscode", Title: "VS Code", file: here(".vscode", "mcp.json"), members: []string{"servers"},
		entry: entryOf(func(url string) any { return typed{"http", url} }, "stdio"),
	},
	{
		Name: "cursor", Title: "Cursor", file: here(".cursor", "mcp.json"), members: []string{"mcpServers"},
		entry: entryOf(func(url string) any { return plain{url} }, ""),
	},
	{
		Name: "codex", Title: "Codex", file: atHome("CODEX_HOME", ".codex", "config.toml"), members: []string{"mcp_servers"}, isTOML: true,
		entry: entryOf(func(url string) any { return plain{url} }, ""),
	},
	{
		Name: "gemini", Title: "Gemini CLI", file: atHome("", ".gemini", "settings.json"), members: []string{"mcpServers"},
		entry: entryOf(func(url string) any { return httpURL{url} }, ""),
	},
	{
		Name: "qwen", Title: "Qwen Code", file: atHome("", ".qwen", "settings.json"), members: []string{"mcpServers"},
		entry: entryOf(func(url string) any { return httpURL{url} }, ""),
	},
	{
		Name: "opencode", Title: "opencode", file: atHome("XDG_CONFIG_HOME", ".config", "opencode", "opencode.json"), members: []string{"mcp"},
		entry: func(s Server) any {
			if s.URL != "" {
				return remote{"remote", s.URL, true}
			}
			return local{"local", s.Command, true}
		},
	},
}

// Find returns the client of a name.
func Find(name string) (Client, bool) {
	i := slices.IndexFunc(Clients, func(c Client) bool { return c.Name == name })
	if i < 0 {
		return Client{}, false
	}
	return Clients[i], true
}

// File returns the path of the file that the client reads.
func (c Client) File() (string, error) { return c.file() }

// StartsServers reports whether the client's file takes programs alone: an address needs a program that speaks to it.
func (c Client) StartsServers() bool { return c.Name == "claude-desktop" }

// Command returns the client's own command that adds the server; "" if it has none.
func (c Client) Command(s Server) string {
	if c.command == nil {
		return ""
	}
	words := c.command(s)
	for i, word := range words {
		words[i] = quoteWord(word)
	}
	return strings.Join(words, " ")
}

func addToClaude(s Server) []string {
	if s.URL != "" {
		return []string{"claude", "mcp", "add", "--transport", "http", s.Name, s.URL}
	}
	return append([]string{"claude", "mcp", "add", s.Name, "--"}, s.Command...)
}

// quoteWord quotes a word for a POSIX shell where it needs that.
func quoteWord(word string) string {
	if word != "" && strings.Trim(word, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:@%+=,") == "" {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// entryOf makes the entry of a server: of its address, or of its program, whose entry has a member "type" if kind is
// not empty.
func entryOf(address func(url string) any, kind string) func(Server) any {
	return func(s Server) any {
		if s.URL != "" {
			return address(s.URL)
		}
		return programOf(s.Command, kind)
	}
}

func programOf(command []string, kind string) program {
	return program{Type: kind, Command: command[0], Args: command[1:]}
}

// here is a file of the project in the current folder.
func here(path ...string) func() (string, error) {
	return func() (string, error) { return filepath.Join(path...), nil }
}

// atHome is a file below the user's home; the first folder of the path is that which a variable of the
// environment names, if that is set.
func atHome(variable string, path ...string) func() (string, error) {
	return func() (string, error) {
		if dir := os.Getenv(variable); variable != "" && dir != "" {
			return filepath.Join(append([]string{dir}, path[1:]...)...), nil
		}
		home, err := os.UserHomeDir()
		return filepath.Join(append([]string{home}, path...)...), err
	}
}

// configured is a file below the user's folder for configurations.
func configured(path ...string) func() (string, error) {
	return func() (string, error) {
		dir, err := os.UserConfigDir()
		return filepath.Join(append([]string{dir}, path...)...), err
	}
}
