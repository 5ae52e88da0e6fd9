// Command taskgate is a reverse proxy for MCP servers that turns slow tool calls into tasks.
//
//	taskgate serve --config taskgate.yaml
//	taskgate stdio --upstream http://127.0.0.1:3001/mcp
//	taskgate check taskgate.yaml
//
// It exits with 0 if all went well, 1 on failure and 2 if the command line was wrong. "taskgate
// help" explains the verbs.
package main

import (
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"

	"taskgate/gateway/config"
	"taskgate/gateway/sealed"
	"taskgate/internal/service"
)

func main() {
	if code, is := service.Run("taskgate", func(ctx context.Context, log io.Writer) int { return run(ctx, os.Args[1:], io.Discard, log) }); is {
		os.Exit(code)
	}
	verb, _ := splitVerb(os.Args[1:])
	os.Exit(run(untilSignal(verb), os.Args[1:], os.Stdout, os.Stderr))
}

// untilSignal returns a context that ends with the first interrupt or SIGTERM (which on Windows are Ctrl-C, Ctrl-Break
// and the end of the console or of the user's session), or, for verbs other
// than serve, with SIGHUP, unless that is ignored: the terminal was closed. Before the context
// ends, signals have their default effect again, so a second one ends the process. A second signal
// that comes before that ends it as well.
func untilSignal(verb string) context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	if verb == "serve" || verb == "stdio" { // a log or output that nobody reads any more must not end a process that has tasks
		signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	}
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

// run executes one command line, given without the program's name, and returns the exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	verb, args := splitVerb(args)
	switch verb {
	case "serve":
		return serve(ctx, args, stdout, stderr)
	case "reload":
		return askReload(ctx, args, stdout, stderr)
	case "stdio":
		return serveStdio(ctx, args, os.Stdin, stdout, stderr)
	case "tasks", "replicas", "upstreams", "clients", "pause", "resume":
		return runOperator(ctx, verb, args, os.Stdin, stdout, stderr)
	case "connect":
		return connectClient(args, os.Stdin, stdout, stderr)
	case "check":
		return checkFiles(ctx, args, stdout, stderr)
	case "hash-key":
		return hashKey(args, os.Stdin, stdout, stderr)
	case "state-key":
		return printText(verb, args, stdout, stderr, func() string { return base64.StdEncoding.EncodeToString(sealed.NewSecret()) + "\n" })
	case "schema":
		return printText(verb, args, stdout, stderr, func() string { return string(config.Schema()) })
	case "version":
		return printText(verb, args, stdout, stderr, thisVersion)
	case "help":
		return writeOutput(stdout, stderr, usage)
	}
	return reportMisuse(stderr, "unknown verb %q", verb)
}

// splitVerb returns the verb and its arguments. Flags without a verb are those of serve.
func splitVerb(args []string) (verb string, rest []string) {
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

// thisVersion is the module's version and the commit it was built from.
func thisVersion() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "taskgate (built without module information)\n"
	}
	return versionText(info)
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
