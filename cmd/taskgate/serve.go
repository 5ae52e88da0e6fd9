package main

import (
	"context"
	"flag"
	"io"
	"net"

	"taskgate/redisstore/journal"
)

// serve is the verb that runs the gateway.
func serve(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("serve", flag.ContinueOnError)
	options := newServeOptions(flags)
	if code, done := parseFlags(flags, args, stdout, stderr); done {
		return code
	}
	if flags.NArg() > 0 {
		return reportMisuse(stderr, "serve takes no arguments besides its options")
	}
	cfg, err := options.loadConfig()
	if err != nil {
		return reportMistakes(stderr, flags.Name(), err)
	}
	ctx, end := context.WithCancel(ctx)
	defer end()
	s := newServer(cfg, stderr)
	if options.file != "" {
		s.load = options.loadConfig
	}
	defer s.listenHangups(end)()
	s.chooseFolder(options.nameFolder(cfg))
	tuneCollector(containerLimit, s.log)
	if err = s.openServer(ctx); err == nil {
		err = s.serveUntilEnd(ctx)
	}
	if err != nil {
		return reportFailure(stderr, err)
	}
	return exitOK
}

// network is how a process is reached, and reaches others and its store.
type network struct {
	listen     func(ctx context.Context, network, address string) (net.Listener, error) // for clients
	dialServer func(ctx context.Context, network, address string) (net.Conn, error)     // nil: as the transport does
	dialStore  func(ctx context.Context, network, address string) (net.Conn, error)     // nil: as the store does
	folder     journal.Folder                                                           // of a store "file:FOLDER"; nil: that of the system
}

// systemNetwork is the network of this machine.
func systemNetwork() network { return network{listen: (&net.ListenConfig{}).Listen} }
