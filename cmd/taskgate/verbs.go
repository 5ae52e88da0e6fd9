package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"golang.org/x/term"

	"taskgate/gateway/config"
	"taskgate/gateway/operator/terminal"
	"taskgate/internal/connect"
)

// checkNamed looks at the files that a configuration names, as serve will. It returns what is wrong, with keys.
func checkNamed(c *config.Config) (wrong []string) {
	add := func(key string, err error) {
		if err != nil {
			for line := range strings.SplitSeq(err.Error(), "\n") {
				wrong = append(wrong, key+line)
			}
		}
	}
	if c.TLS.CertFile != "" {
		_, err := listenerTLS(c.TLS)
		add("tls.", err)
	}
	_, err := clientTLS(c.StoreTLS)
	add("store_tls.", err)
	for i, u := range c.Upstreams {
		_, err := clientTLS(u.TLS)
		add(fmt.Sprintf("upstreams[%d].tls.", i), err)
	}
	add("audit: ", checkAudit(c.Audit))
	return wrong
}

// checkFiles loads each file as serve would and reports all mistakes of all files. It needs the
// environment of serve, because an unset variable is a mistake. With --connect it asks the servers, too.
func checkFiles(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("check", flag.ContinueOnError)
	connects := flags.Bool("connect", false, "")
	if code, done := parseFlags(flags, args, stdout, stderr); done {
		return code
	}
	if flags.NArg() == 0 {
		return reportMisuse(stderr, "check needs the name of a file")
	}
	code := exitOK
	for _, file := range flags.Args() {
		c, err := config.Load(file)
		if err != nil {
			fmt.Fprintln(stderr, err)
			code = exitFailure
			continue
		}
		wrong, warnings := checkNamed(c), c.Warnings()
		if *connects && len(wrong) == 0 {
			var doubtful []string
			wrong, doubtful = checkListed(ctx, c)
			warnings = append(warnings, doubtful...)
		}
		if len(wrong) > 0 {
			for _, line := range wrong {
				fmt.Fprintf(stderr, "%s: %s\n", file, line)
			}
			code = exitFailure
			continue
		}
		for _, warning := range warnings {
			fmt.Fprintf(stderr, "%s: warning: %s\n", file, warning)
		}
		found := terminal.Count(len(c.Upstreams), "upstream")
		if c.Store == config.StoreFile {
			path, err := stateFolder(folderOfFile(file))
			if err != nil {
				path = "memory, for want of a folder: " + err.Error()
			}
			found += ", tasks in " + path
		}
		code = max(code, writeOutput(stdout, stderr, fmt.Sprintf("%s: ok (%s)\n", file, found)))
	}
	return code
}

const (
	// maxKey bounds a key, in bytes, so that it fits beside the other headers of a request.
	maxKey = 16 << 10
	// shortKey is the length below which even a random key can be guessed: its hash has no salt.
	shortKey = 20
	// fewCharacters is the number of different characters below which a key is surely not random.
	fewCharacters = 8
)

// hashKey prints the hash of the key on standard input, for the configuration. It removes the line
// break that echo and openssl add.
func hashKey(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("hash-key", flag.ContinueOnError)
	force := flags.Bool("force", false, "")
	if code, done := parseFlags(flags, args, stdout, stderr); done {
		return code
	}
	if flags.NArg() > 0 {
		// A key on the command line would be visible to others.
		return reportMisuse(stderr, "hash-key reads the key from standard input and takes no arguments besides --force")
	}
	data, err := io.ReadAll(io.LimitReader(stdin, maxKey+1))
	if err != nil {
		return reportFailure(stderr, fmt.Errorf("hash-key: %w", err))
	}
	key := strings.TrimRight(string(data), "\r\n")
	if len(key) > maxKey || !config.ValidKey(key) {
		fmt.Fprintln(stderr, "taskgate: hash-key: no key that a client can send: it needs letters, digits and -._~+/, perhaps with = at the end")
		return exitFailure
	}
	if isWeak(key) {
		fmt.Fprintf(stderr, "taskgate: hash-key: this key is weak enough to be guessed from its hash; use at least %d random characters\n", shortKey)
		if !*force {
			fmt.Fprintln(stderr, "taskgate: hash-key: it is not hashed; --force does so all the same")
			return exitFailure
		}
	}
	return writeOutput(stdout, stderr, config.HashKey(key)+"\n")
}

// isWeak reports whether a key is short, or made of few characters.
func isWeak(key string) bool {
	different := map[rune]bool{}
	for _, c := range key {
		different[c] = true
	}
	return len(key) < shortKey || len(different) < fewCharacters
}

// connectOptions are the flags of connect.
type connectOptions struct {
	name, url, upstream, file string
	write, yes                bool
}

// connectClient says how an MCP client is pointed at the gateway, or writes that into the client's file.
func connectClient(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("connect", flag.ContinueOnError)
	var o connectOptions
	flags.StringVar(&o.name, "name", "taskgate", "")
	flags.StringVar(&o.url, "url", "", "")
	flags.StringVar(&o.upstream, "upstream", "", "")
	flags.StringVar(&o.file, "file", "", "")
	flags.BoolVar(&o.write, "write", false, "")
	flags.BoolVar(&o.yes, "yes", false, "")
	name := ""
	if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		name, args = args[0], args[1:]
	}
	if code, done := parseFlags(flags, args, stdout, stderr); done {
		return code
	}
	client, ok := connect.Find(name)
	if !ok {
		return reportMisuse(stderr, "connect needs a client: %s", strings.Join(clientNames(), ", "))
	}
	server, err := o.serverFor(client, flags.Args())
	if err != nil {
		return reportMisuse(stderr, "connect: %v", err)
	}
	if !o.write {
		return writeOutput(stdout, stderr, o.explain(client, server))
	}
	if err := o.writeFile(client, server, stdin, stdout); err != nil {
		return reportFailure(stderr, err)
	}
	return exitOK
}

func clientNames() (names []string) {
	for _, c := range connect.Clients {
		names = append(names, c.Name)
	}
	return names
}

// serverName is what every client takes in the names of tools.
var serverName = regexp.MustCompile(`^[A-Za-z0-9_-]+$`)

// serverFor is what the client is to reach: the gateway at an address, or taskgate in the place of a server.
func (o connectOptions) serverFor(client connect.Client, command []string) (connect.Server, error) {
	s := connect.Server{Name: o.name}
	switch given := o.upstream != "" || len(command) > 0; {
	case !serverName.MatchString(o.name):
		return s, fmt.Errorf("--name %q may have letters, digits, _ and -", o.name)
	case given && o.url != "", o.upstream != "" && len(command) > 0:
		return s, errors.New("give one of --url URL, --upstream URL and -- COMMAND")
	case len(command) > 0:
		s.Command = append([]string{thisProgram(), "stdio", "--"}, command...)
	case o.upstream != "":
		s.Command = []string{thisProgram(), "stdio", "--upstream", o.upstream}
	default:
		s.URL = cmp.Or(o.url, "http://127.0.0.1:8080/mcp")
	}
	for _, address := range []string{s.URL, o.upstream} {
		if u, err := url.Parse(address); address != "" && (err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "") {
			return s, fmt.Errorf("%q is no http:// or https:// address", address)
		}
	}
	if client.StartsServers() && s.URL != "" {
		s.Command, s.URL = []string{thisProgram(), "stdio", "--upstream", s.URL}, ""
	}
	return s, nil
}

// thisProgram is how a client starts taskgate: by its path, since a desktop program may have another PATH, or by its
// name where the path is that of "go run", which goes.
func thisProgram() string {
	path, err := os.Executable()
	if err != nil || strings.Contains(filepath.ToSlash(path), "/go-build") {
		return "taskgate"
	}
	return path
}

// explain is what a user does by hand.
func (o connectOptions) explain(client connect.Client, server connect.Server) string {
	text := ""
	if command := client.Command(server); command != "" {
		text = command + "\n\nor "
	}
	file := o.file
	if file == "" {
		file, _ = client.File() // where there is no home directory, its name is left out
	}
	return fmt.Sprintf("%sin %s, which --write changes for you:\n\n%s", text, file, client.Snippet(server))
}

// writeFile shows the change of the client's file, asks, and makes it.
func (o connectOptions) writeFile(client connect.Client, server connect.Server, stdin io.Reader, stdout io.Writer) error {
	change, err := client.Plan(o.file, server)
	if errors.Is(err, connect.ErrTaken) {
		return fmt.Errorf("%w; take that out, or give another --name:\n\n%s", err, client.Snippet(server))
	}
	if err != nil {
		return err
	}
	if change.IsNone() {
		_, err := fmt.Fprintf(stdout, "%s says so already\n", change.File)
		return err
	}
	if _, err := io.WriteString(stdout, change.Diff()); err != nil {
		return err
	}
	if !o.yes {
		if f, ok := stdin.(*os.File); !ok || !term.IsTerminal(int(f.Fd())) {
			return terminal.UsageError("connect --write needs --yes where nobody can be asked")
		}
		if !terminal.Confirm(stdin, stdout, "Write "+change.File+"?") {
			return errors.New("nothing is written")
		}
	}
	kept, err := change.Write()
	if err != nil {
		return err
	}
	if kept != "" {
		kept = "; as it was, it is kept in " + kept
	}
	_, err = fmt.Fprintf(stdout, "%s is written%s. Start %s anew.\n", change.File, kept, client.Title)
	return err
}
