package main

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io"
	"runtime/debug"
	"slices"
	"strings"

	"taskgate/gateway/operator/terminal"
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
  taskgate connect CLIENT             print how to point an MCP client at the gateway, or
                                      write it into the client's file: claude-code,
                                      claude-desktop, vscode, cursor, codex, gemini, qwen
                                      or opencode
  taskgate reload                     have the gateway at --admin, or at the admin address
                                      in --config FILE, read its configuration anew
  taskgate tasks [list]               list tasks, the newest first
  taskgate tasks show ID              show one task and what happened to it
  taskgate tasks events ID            show only what happened to it
  taskgate tasks watch                show what runs, and draw it anew as it changes
  taskgate tasks cancel ID...         cancel tasks; with --filter all that match
  taskgate tasks rerun ID...          run failed calls again, for tools with rerun: on
  taskgate replicas                   list the replicas of the deployment
  taskgate upstreams                  list the servers and what runs there
  taskgate clients                    list who sends requests, and who holds what
  taskgate pause [UPSTREAM[/TOOL]...] refuse new calls of a server, or of a tool of it, as
                                      busy; without a name, list what is paused
  taskgate resume UPSTREAM[/TOOL]...  take them again
  taskgate check FILE...              report every mistake in configuration files; with
                                      --connect also tools that the servers do not have
  taskgate hash-key [--force]         print the hash of the key on standard input;
                                      a weak key is refused unless forced
  taskgate state-key                  print a new key for state_keys
  taskgate schema                     print the JSON Schema of the configuration
  taskgate version                    print the version
  taskgate help                       print this text

Options of serve:

  --config FILE        configuration file; config.example.yaml documents its keys
  --upstream URL       MCP endpoint to serve at /mcp, instead of --config
  --header "N: VALUE"  a header for requests to that server, such as "Authorization:
                       Bearer KEY"; once for each
  --listen HOST:PORT   address to serve on (127.0.0.1:8080)
  --admin HOST:PORT    address of the console, /metrics, /healthz and /readyz (none)
  --store STORE        file:FOLDER, embedded (in memory), or a redis:// URL (a folder
                       of its own in the user's state folder)
  --grace DURATION     how long a call may take before it becomes a task (auto)
  --offer ERA          auto, both, legacy or modern: what clients are offered (auto)
  --log-format FORMAT  text or json (text)
  --log-level LEVEL    debug, info, warn or error (info)

Options of stdio:

  --upstream URL       MCP endpoint of the server, instead of a command
  --header "N: VALUE"  as for serve
  --config FILE        configuration file that has the server
  --name NAME          which server of the file, if it has several
  --grace DURATION     as for serve
  --era ERA            auto, legacy or modern: the era to speak to the server (auto)
  --offer ERA          as for serve
  --without-tasks MODE auto, block or handle: what a slow call does to a client that
                       knows no tasks (auto)
  --store STORE        as for serve (embedded, or what the file names)
  --log-level LEVEL    as for serve; the log goes to standard error

It ends when its standard input does, and tasks in memory with it. A command gets the
whole environment of taskgate.

Options of connect, after the client:

  --url URL            the gateway's address (http://127.0.0.1:8080/mcp)
  --upstream URL       MCP endpoint: the client starts taskgate stdio for it; so does -- COMMAND
  --name NAME          what the client calls the server (taskgate)
  --write              show the change of the client's file, ask, and write it; the file as it
                       was is kept beside it
  --file FILE          the client's file, where it is another one
  --yes                write without asking

Options of tasks, replicas, upstreams, clients, pause and resume, which ask a running gateway
(reload has the first three):

  --admin HOST:PORT    its admin address, or that of the console as its log has it
                       (TASKGATE_ADMIN)
  --config FILE        configuration file that has the admin address
  --key KEY            the key of an operator (TASKGATE_ADMIN_KEY)
  --json               print what the gateway answers; watch prints a line for each change
  --filter NAME=VALUE  of list, watch and cancel, once for each: upstream, tool, principal,
                       replica, id (how it begins), older_than, newer_than, ended_within
                       (90s, 2h), status (open, queued, working, input_required, completed,
                       tool_error, failed, cancelled or unknown, several with commas)
  --oldest             the oldest first
  --limit N            how many at most (100)
  --yes                cancel without asking

An ID may be the beginning of one.

The first interrupt or SIGTERM drains and stops, the second stops at once. Under serve
--config, SIGHUP reads the configuration anew, as does a change of the file.
Exit codes: 0 success, 1 failure, 2 wrong usage.
`

// reportMisuse reports a wrong command line.
func reportMisuse(stderr io.Writer, format string, args ...any) int {
	fmt.Fprintf(stderr, "taskgate: "+format+"\nRun 'taskgate help' for usage.\n", args...)
	return exitUsage
}

// reportFailure reports why a verb has failed, and returns the exit code.
func reportFailure(stderr io.Writer, err error) int {
	if mistake, ok := errors.AsType[terminal.UsageError](err); ok {
		return reportMisuse(stderr, "%v", mistake)
	}
	fmt.Fprintf(stderr, "taskgate: %v\n", err)
	return exitFailure
}

// reportMistakes reports why a verb has no configuration. Mistakes in a file begin with its name.
func reportMistakes(stderr io.Writer, verb string, err error) int {
	if mistake, ok := errors.AsType[terminal.UsageError](err); ok {
		return reportMisuse(stderr, "%s: %v", verb, mistake)
	}
	fmt.Fprintln(stderr, err)
	return exitFailure
}

// parseFlags parses the arguments of a verb. If the user asked for help or made a mistake, done is
// true and code is the exit code.
func parseFlags(flags *flag.FlagSet, args []string, stdout, stderr io.Writer) (code int, done bool) {
	flags.SetOutput(io.Discard)
	err := flags.Parse(args)
	switch {
	case err == nil:
		return exitOK, false
	case errors.Is(err, flag.ErrHelp):
		return writeOutput(stdout, stderr, usageOf(flags.Name())), true
	}
	return reportMisuse(stderr, "%s: %v", flags.Name(), err), true
}

// usageOf is the part of the usage about a verb, or all of it for a verb without options.
func usageOf(verb string) string {
	sections := strings.Split(usage, optionsOf)
	i := slices.IndexFunc(sections[1:], func(s string) bool {
		heading, _, _ := strings.Cut(s, ":\n")
		return strings.Contains(heading, verb)
	})
	if i < 0 {
		return usage
	}
	text, ours := "Usage:\n\n", false
	for line := range strings.Lines(sections[0]) {
		begins := strings.HasPrefix(line, "  taskgate ")
		ours = ours && !begins || begins && strings.Trim(strings.Fields(line)[1], "[]") == verb
		if ours && strings.HasPrefix(line, "  ") {
			text += line
		}
	}
	return text + optionsOf + strings.TrimRight(sections[1:][i], "\n") + "\n"
}

// optionsOf begins the options of a verb in the usage.
const optionsOf = "\nOptions of "

// printText executes a verb without arguments, which prints a text.
func printText(verb string, args []string, stdout, stderr io.Writer, text func() string) int {
	flags := flag.NewFlagSet(verb, flag.ContinueOnError)
	if code, done := parseFlags(flags, args, stdout, stderr); done {
		return code
	}
	if flags.NArg() > 0 {
		return reportMisuse(stderr, "%s takes no arguments", verb)
	}
	return writeOutput(stdout, stderr, text())
}

// writeOutput writes a command's output; a full disk or a closed pipe is a failure.
func writeOutput(stdout, stderr io.Writer, text string) int {
	if _, err := io.WriteString(stdout, text); err != nil {
		return reportFailure(stderr, err)
	}
	return exitOK
}

// moduleVersion is the version that this process reports to others.
func moduleVersion() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		return buildVersion(info)
	}
	return cmp.Or(release, "(devel)")
}

// buildVersion is the version of a release, else that of the module: "(devel)" for a build of a
// work tree.
func buildVersion(info *debug.BuildInfo) string { return cmp.Or(release, info.Main.Version) }

// release is the version that deploy/build gives to its builds.
var release string
