package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"io"
	"os"

	"golang.org/x/term"

	"taskgate/gateway/config"
	"taskgate/gateway/operator/terminal"
)

// runOperator executes the verbs that ask a running gateway: tasks, replicas and upstreams.
func runOperator(ctx context.Context, verb string, args []string, stdin *os.File, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet(verb, flag.ContinueOnError)
	file, address := flags.String("config", "", ""), flags.String("admin", "", "")
	key := flags.String("key", os.Getenv(terminal.KeyVariable), "")
	var opts terminal.Options
	opts.Define(flags)
	var words []string // flags may stand before and after them
	for rest := args; ; rest = flags.Args()[1:] {
		if code, done := parseFlags(flags, rest, stdout, stderr); done {
			return code
		}
		if flags.NArg() == 0 {
			break
		}
		words = append(words, flags.Arg(0))
	}
	g, err := gatewayAt(*file, *address, *key)
	if err == nil {
		err = terminal.Run(ctx, g, streams(stdin, stdout, stderr), opts, verb, words)
	}
	if err != nil {
		return reportFailure(stderr, err)
	}
	return exitOK
}

// gatewayAt returns the gateway at an address, at that in its file, or at that of the environment.
func gatewayAt(file, address, key string) (*terminal.Gateway, error) {
	if file != "" && address == "" {
		var err error
		if address, err = config.LoadAdmin(file); err != nil {
			return nil, err
		}
		if address == "" {
			return nil, errors.New("the configuration has no admin address to ask at")
		}
	}
	if address = cmp.Or(address, os.Getenv(terminal.AddressVariable)); address == "" {
		return nil, terminal.UsageError("give --admin HOST:PORT, --config FILE, or " + terminal.AddressVariable)
	}
	return terminal.NewGateway(address, key)
}

// streams returns those of this process. A user is present if both the input and the output are
// terminals.
func streams(stdin *os.File, stdout, stderr io.Writer) terminal.Streams {
	s := terminal.Streams{In: stdin, Out: stdout, Err: stderr}
	if screen, ok := stdout.(*os.File); ok && term.IsTerminal(int(screen.Fd())) && term.IsTerminal(int(stdin.Fd())) {
		s.Interactive = true
		s.Size = func() (int, int) {
			columns, lines, _ := term.GetSize(int(screen.Fd())) // 0 if unknown
			return columns, lines
		}
	}
	return s
}
