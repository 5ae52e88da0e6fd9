// Command taskgate is a reverse proxy for MCP servers that turns slow tool
// calls into tasks.
//
//	taskgate serve --config taskgate.yaml
//	taskgate stdio --upstream http://127.0.0.1:3001/mcp
//	taskgate check taskgate.yaml
//
// It exits with 0 if all went well, 1 on failure and 2 if the command line was
// wrong. "taskgate help" explains the verbs.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"
)

// Exit codes.
const (
	exitOK      = 0
	exitFailure = 1
	exitUsage   = 2
)

const usage = `taskgate stands in front of MCP servers and turns slow tool calls into tasks.

Usage:

  taskgate [serve] --config FILE      serve what the file configures
  taskgate [serve] --upstream URL     serve one MCP server at /mcp, with defaults
  taskgate stdio --upstream URL       serve one MCP server to the one client that has
                                      started this process, over stdin and stdout
  taskgate stdio -- COMMAND [ARG...]  the same, for a server that speaks over stdio
  taskgate reload --config FILE       have the gateway at the file's admin address, or at
                                      --admin HOST:PORT, read its configuration anew
  taskgate check FILE...              report every mistake in configuration files
  taskgate hash-key [--force]         print the hash of the key on standard input;
                                      a weak key is refused unless forced
  taskgate state-key                  print a new key for state_keys
  taskgate schema                     print the JSON Schema of the configuration
  taskgate version                    print the version
  taskgate help                       print this text

Options of serve:

  --config FILE        configuration file; config.example.yaml documents its keys
  --upstream URL       MCP endpoint to serve at /mcp, instead of --config
  --listen HOST:PORT   address to serve on (127.0.0.1:8080)
  --admin HOST:PORT    address of /healthz and /readyz (none)
  --store STORE        file:DIRECTORY, embedded (in memory), or a redis:// URL (a directory
                       of its own in the user's state directory)
  --grace DURATION     how long a call may take before it becomes a task (auto)
  --log-format FORMAT  text or json (text)
  --log-level LEVEL    debug, info, warn or error (info)

Options of stdio:

  --upstream URL       MCP endpoint of the server, instead of a command
  --config FILE        configuration file that has the server
  --name NAME          which server of the file, if it has several
  --grace DURATION     as for serve
  --era ERA            auto, legacy or modern: the era to speak to the server (auto)
  --without-tasks MODE auto, block or handle: what a slow call does to a client that
                       knows no tasks (auto)
  --store STORE        as for serve (embedded, or what the file names)
  --log-level LEVEL    as for serve; the log goes to standard error

It ends when its standard input does, and tasks in memory with it. A command gets the
whole environment of taskgate.

The first interrupt or SIGTERM drains and stops, the second stops at once. Under serve
--config, SIGHUP reads the configuration anew, as does a change of the file.
Exit codes: 0 success, 1 failure, 2 wrong usage.
`

func main() {
	verb, _ := split(os.Args[1:])
	os.Exit(run(untilSignal(verb), os.Args[1:], os.Stdout, os.Stderr))
}

// untilSignal is a context that ends with the first interrupt, SIGTERM or, unless that is
// ignored, SIGHUP: the terminal of the client was closed. To serve it means something else. Before
// anybody sees it end, the default has taken over again, by which a second signal ends
// the process. One that came in between is not lost: it does the same.
func untilSignal(verb string) context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	if verb != "serve" && !signal.Ignored(syscall.SIGHUP) {
		signal.Notify(signals, syscall.SIGHUP)
	}
	go func() {
		<-signals
		signal.Stop(signals)
		if len(signals) > 0 {
			os.Exit(exitFailure)
		}
		cancel()
	}()
	return ctx
}

// run executes one command line, without the program's name, and returns the
// exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	verb, args := split(args)
	switch verb {
	case "serve":
		return serve(ctx, args, stdout, stderr)
	case "reload":
		return askReload(ctx, args, stdout, stderr)
	case "stdio":
		return serveStdio(ctx, args, os.Stdin, stdout, stderr)
	case "check":
		return check(args, stdout, stderr)
	case "hash-key":
		return hashKey(args, os.Stdin, stdout, stderr)
	case "state-key":
		return stateKey(args, stdout, stderr)
	case "schema":
		return schema(args, stdout, stderr)
	case "version":
		return version(args, stdout, stderr)
	case "help":
		return output(stdout, stderr, usage)
	}
	return misuse(stderr, "unknown verb %q", verb)
}

// split returns the verb and its arguments. Flags without a verb are serve's.
func split(args []string) (verb string, rest []string) {
	if len(args) == 0 {
		return "serve", nil
	}
	switch first := args[0]; {
	case first == "-h" || first == "-help" || first == "--help":
		return "help", nil
	case first == "-version" || first == "--version":
		return "version", args[1:]
	case strings.HasPrefix(first, "-"):
		return "serve", args
	default:
		return first, args[1:]
	}
}

// misuse reports a wrong command line.
func misuse(stderr io.Writer, format string, args ...any) int {
	fmt.Fprintf(stderr, "taskgate: "+format+"\nRun 'taskgate help' for usage.\n", args...)
	return exitUsage
}

// parseFlags parses the arguments of a verb. If it has not succeeded, done is
// true and code is how to exit: the user asked for help or made a mistake.
func parseFlags(flags *flag.FlagSet, args []string, stdout, stderr io.Writer) (code int, done bool) {
	flags.SetOutput(io.Discard)
	err := flags.Parse(args)
	switch {
	case err == nil:
		return exitOK, false
	case errors.Is(err, flag.ErrHelp):
		return output(stdout, stderr, usage), true
	}
	return misuse(stderr, "%s: %v", flags.Name(), err), true
}

// noArguments is the command line of a verb that takes none.
func noArguments(verb string, args []string, stdout, stderr io.Writer) (code int, done bool) {
	flags := flag.NewFlagSet(verb, flag.ContinueOnError)
	if code, done := parseFlags(flags, args, stdout, stderr); done {
		return code, true
	}
	if flags.NArg() > 0 {
		return misuse(stderr, "%s takes no arguments", verb), true
	}
	return exitOK, false
}

// version prints the module's version and the commit it was built from.
func version(args []string, stdout, stderr io.Writer) int {
	if code, done := noArguments("version", args, stdout, stderr); done {
		return code
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return output(stdout, stderr, "taskgate (built without module information)\n")
	}
	return output(stdout, stderr, versionText(info))
}

// release is the version that deploy/build gives what it builds.
var release string

// buildVersion is the version of a release, else that of the module: "(devel)" for a build of a
// work tree.
func buildVersion(info *debug.BuildInfo) string { return cmp.Or(release, info.Main.Version) }

// moduleVersion is what this process says of its version to others.
func moduleVersion() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		return buildVersion(info)
	}
	return cmp.Or(release, "(devel)")
}

// versionText is "taskgate VERSION (REVISION, modified) GO".
func versionText(info *debug.BuildInfo) string {
	revision, modified := "", ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			revision = s.Value
		case s.Key == "vcs.modified" && s.Value == "true":
			modified = ", modified"
		}
	}
	if revision != "" {
		revision = " (" + revision[:min(12, len(revision))] + modified + ")"
	}
	return fmt.Sprintf("taskgate %s%s %s\n", buildVersion(info), revision, info.GoVersion)
}

// output writes a command's output; a full disk or a closed pipe is a failure.
func output(stdout, stderr io.Writer, text string) int {
	if _, err := io.WriteString(stdout, text); err != nil {
		fmt.Fprintf(stderr, "taskgate: %v\n", err)
		return exitFailure
	}
	return exitOK
}
