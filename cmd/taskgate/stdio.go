package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"flag"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"taskgate/gateway/config"
	"taskgate/gateway/operator/terminal"
	"taskgate/gateway/stdio"
)

// ownMessage is the least that a message of the client may have: it is the only client.
const ownMessage = 32 * config.MiB

// noListener is the address of a gateway that has none: whatever holds of a loopback address holds there.
const noListener = "127.0.0.1:0"

// partingTimeout bounds, at the end, each step that still sends to the client.
const partingTimeout = time.Second

// serveStdio is the verb that runs the gateway for one client, over standard input and output.
func serveStdio(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("stdio", flag.ContinueOnError)
	options := newStdioOptions(flags)
	if code, done := parseFlags(flags, args, stdout, stderr); done {
		return code
	}
	cfg, err := options.loadConfig(flags.Args())
	if err != nil {
		return reportMistakes(stderr, flags.Name(), err)
	}
	s, err := newStdioServer(ctx, cfg, stderr)
	if err == nil {
		err = s.runStdio(ctx, stdin, stdout)
	}
	if err != nil {
		return reportFailure(stderr, err)
	}
	return exitOK
}

// stdioOptions are the flags of stdio.
type stdioOptions struct {
	serveOptions
	name string
}

// newStdioOptions declares the flags. Their description is the usage text.
func newStdioOptions(flags *flag.FlagSet) *stdioOptions {
	o := &stdioOptions{serveOptions: serveOptions{flags: flags}}
	o.declareShared()
	flags.StringVar(&o.name, "name", "", "")
	o.declare("era", func(c *config.Config, value string) { c.Upstreams[0].Era = config.Era(value) })
	o.declare("without-tasks", func(c *config.Config, value string) { c.Upstreams[0].WithoutTasks = config.WithoutTasks(value) })
	return o
}

// loadConfig makes the configuration that the flags, and the command of a server, describe. It has
// one server, and one client: the user who started the process.
func (o *stdioOptions) loadConfig(command []string) (*config.Config, error) {
	cfg, err := o.readSource(command)
	if err != nil {
		return nil, err
	}
	u := cfg.Upstreams[0]
	if cfg.Store == config.StoreFile { // the default would be shared: a client may start several of these
		cfg.Store = config.StoreEmbedded
	}
	if cfg.Audit == config.AuditStdout {
		return nil, terminal.UsageError("audit: stdout is where the client reads; name a file")
	}
	for _, signal := range []string{"TRACES", "METRICS", "LOGS"} {
		if name := "OTEL_" + signal + "_EXPORTER"; os.Getenv(name) == "console" && os.Getenv("OTEL_SDK_DISABLED") != "true" {
			return nil, terminal.UsageError(name + "=console is where the client reads; name another exporter")
		}
	}
	cfg.MaxBody = max(cfg.MaxBody, ownMessage)
	// Only one local user can call, so the rules of loopback hold.
	cfg.Auth, u.Auth, cfg.Listen, cfg.Admin = config.Auth{}, nil, noListener, ""
	u.ExposeHeaders = nil // stdio has none
	letIn := func(t *config.Tool) { t.Scopes, t.MissingRights, t.Principals = "", config.RightsChallenge, nil }
	letIn(&u.Defaults) // nobody has a token here, or signs in
	for i := range u.Tools {
		letIn(&u.Tools[i].Tool)
	}
	if err := o.overrideConfig(cfg); err != nil {
		return nil, err
	}
	if cfg.Store == config.StoreFile {
		return nil, terminal.UsageError("--store file:FOLDER names its folder here")
	}
	return cfg, nil
}

// readSource returns the configuration before the flags override it.
func (o *stdioOptions) readSource(command []string) (*config.Config, error) {
	given := 0
	for _, is := range []bool{o.file != "", o.upstream != "", len(command) > 0} {
		if is {
			given++
		}
	}
	switch {
	case given != 1:
		return nil, terminal.UsageError("give one of --upstream URL, --config FILE and -- COMMAND")
	case o.name != "" && o.file == "":
		return nil, terminal.UsageError("--name goes with --config")
	case o.file != "":
		return o.fromFile()
	}
	cfg := config.FromFlags(o.upstream)
	u := cfg.Upstreams[0]
	u.Name += "-" + digest(append(command, o.upstream))
	if len(command) > 0 {
		u.Command, u.Args, u.Env = command[0], command[1:], config.InheritedEnv() // as it would have without the gateway
	}
	return cfg, nil
}

// digest gives each command line its own server name: several processes may share a store, and each
// takes over what others have left of the server with its name.
func digest(words []string) string {
	sum := sha256.Sum256([]byte(strings.Join(words, "\x00")))
	return hex.EncodeToString(sum[:6])
}

// fromFile takes one server of a file.
func (o *stdioOptions) fromFile() (*config.Config, error) {
	cfg, err := config.LoadUnheard(o.file)
	if err != nil {
		return nil, err
	}
	if o.name == "" && len(cfg.Upstreams) == 1 {
		return cfg, nil
	}
	var names []string
	for _, u := range cfg.Upstreams {
		if u.Name == o.name {
			cfg.Upstreams = []*config.Upstream{u}
			return cfg, nil
		}
		names = append(names, u.Name)
	}
	return nil, terminal.UsageError("--name NAME is one of " + strings.Join(names, ", "))
}

// newStdioServer builds a gateway without a listener. A process of its server lasts as long as the
// client, as it would without the gateway.
func newStdioServer(ctx context.Context, c *config.Config, stderr io.Writer) (*server, error) {
	s := newServer(c, stderr)
	s.processIdle = 0
	if folder, onDisk := c.StoreFolder(); onDisk {
		s.windows = newWindows(s, folder)
	}
	if err := s.buildGateway(ctx); err != nil {
		return nil, errors.Join(err, s.closeAll())
	}
	return s, nil
}

// runStdio serves one client until that closes its output or its input, or ctx ends. Then
// everything ends within seconds, because the client has stopped waiting, and tasks in an embedded
// store end with the process.
func (s *server) runStdio(ctx context.Context, stdin io.Reader, stdout io.Writer) error {
	conn := stdio.New(stdout, stdio.Options{
		Handler: s.gateway.Handler(), Path: s.config.Upstreams[0].Path,
		MaxMessage: int64(s.config.MaxBody), MaxRequests: s.config.Limits.Within(memoryLimit()).MaxCalls, Logger: s.log,
	})
	loops, stop := outlastingContext(ctx)
	defer stop()
	g, failed := errgroup.WithContext(ctx)
	g.Go(func() error { return ignoreExpected(s.shim.Run(loops), context.Canceled) })
	g.Go(func() error { return ignoreExpected(s.gateway.Run(loops), context.Canceled) })
	g.Go(func() error { return s.sweepStore(loops) })
	g.Go(func() error { return s.store.AwaitRemoval(loops) })
	g.Go(func() error {
		defer stop()
		err := conn.Serve(failed, stdin)
		return errors.Join(err, s.partFromClient(loops, conn, err == nil))
	})
	return s.closeAfter(g)
}

// partFromClient ends what the client listens to, then its other requests in flight.
func (s *server) partFromClient(ctx context.Context, conn *stdio.Conn, heard bool) error {
	brief, stop := context.WithTimeout(ctx, partingTimeout)
	defer stop()
	if err := s.gateway.Close(brief); err != nil {
		s.log.Warn("streams did not end in time", "err", err)
	}
	brief, stop = context.WithTimeout(ctx, partingTimeout)
	defer stop()
	if err := conn.Close(brief); err != nil && heard {
		s.log.Warn("the client did not read what it was sent", "err", err)
	}
	hasty, stop := s.hastyContext(ctx)
	defer stop()
	if err := s.shim.Close(hasty); err != nil {
		s.log.Warn("not everything that was left could be recorded in time", "err", err)
	}
	return nil
}
