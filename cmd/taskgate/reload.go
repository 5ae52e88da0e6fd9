package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/signal"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"

	"taskgate/gateway/config"
	"taskgate/gateway/operator/terminal"
	"taskgate/internal/work"
)

// lookEvery is how often the configuration is read anew. A change is used once it has been the same for sameFor, because
// the file may still be written at first. There is no watcher: it would have to know each file
// that is named, and how it is replaced, such as a ConfigMap of Kubernetes behind two symbolic links.
const (
	lookEvery = 3 * time.Second
	sameFor   = time.Second
)

// reloader has the state that a server needs to change its configuration while it runs.
type reloader struct {
	load      func() (*config.Config, error) // nil: the gateway was started without a file
	lookEvery time.Duration
	hangups   chan os.Signal
	wishes    chan chan<- outcome // of operators
	gone      *work.Background    // closes clients of former upstreams

	loaded  *config.Config // the configuration in use, as it was loaded
	hash    atomic.Pointer[string]
	seen    string // the stamp of the last reload
	pending string // the stamp of the last read, if it differs from seen
}

// outcome is the answer to POST /reload.
type outcome struct {
	Config   string   `json:"config"`             // the hash of the configuration in use
	Restart  []string `json:"restart,omitempty"`  // keys that only a restart changes
	Mistakes []string `json:"mistakes,omitempty"` // why the file is refused
}

func newReloader(c *config.Config) *reloader {
	loaded, hash := *c, c.Hash()
	r := &reloader{lookEvery: lookEvery, wishes: make(chan chan<- outcome), gone: work.NewBackground(context.Canceled), loaded: &loaded, seen: hash}
	r.hash.Store(&hash)
	return r
}

// inUse is the hash of the configuration in use.
func (s *server) inUse() string { return *s.hash.Load() }

// saysInUse logs which configuration is in use.
func (s *server) saysInUse() {
	s.log.Info("the configuration is in use", "config", s.inUse(), "event", "taskgate.config.used")
}

// awaitReloads takes new configurations until ctx ends: at a SIGHUP, at the request of an operator, and when
// the files have changed.
func (s *server) awaitReloads(ctx context.Context) {
	look := time.NewTimer(s.lookEvery)
	defer look.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.hangups:
			s.reloadConfig()
		case wish := <-s.wishes:
			wish <- s.reloadConfig()
		case <-look.C:
			s.files.takeFiles(s.log)
			s.takeChanged()
			look.Reset(s.nextLook())
		}
	}
}

// nextLook is how long it is until the configuration is read anew: a change has to be the same then.
func (r *reloader) nextLook() time.Duration {
	if r.pending != "" {
		return min(sameFor, r.lookEvery)
	}
	return r.lookEvery
}

// takeChanged takes a changed configuration that is the same as at the last read. It also forgets removed
// upstreams whose time is over.
func (s *server) takeChanged() {
	if s.load == nil {
		return
	}
	c, err := s.load()
	switch found := stamp(c, err); {
	case found == s.seen:
		s.pending = ""
		if s.isOver(time.Now()) {
			_ = s.useConfig(s.loaded) // with the time of now
		}
	case found != s.pending:
		s.pending = found
	default:
		s.takeConfig(c, err)
	}
}

// stamp is the hash of a configuration, or the error of reading it. It changes with either.
func stamp(c *config.Config, err error) string {
	if err != nil {
		return err.Error()
	}
	return c.Hash()
}

// reloadConfig reads the configuration and takes it at once.
func (s *server) reloadConfig() outcome {
	if s.load == nil {
		err := errors.New("there is no file to read anew: the gateway was started without --config")
		return s.refuseConfig(err)
	}
	return s.takeConfig(s.load())
}

// takeConfig uses a configuration, or refuses it as a whole.
func (s *server) takeConfig(c *config.Config, err error) outcome {
	s.notifySystem(daemon.SdNotifyReloading + "\n" + daemon.SdNotifyMonotonicUsec())
	defer s.notifyReady()
	s.seen, s.pending = stamp(c, err), ""
	if err != nil {
		return s.refuseConfig(err)
	}
	next, restart := c.Over(s.loaded)
	if err = next.Validate(); err == nil && next.Hash() != s.inUse() {
		err = s.useConfig(next)
	}
	if err != nil {
		return s.refuseConfig(err)
	}
	for _, key := range restart {
		s.log.Warn("this key is only read at the start: restart the gateway to change it", "key", key)
	}
	for _, one := range s.served() {
		one.client.DropDoubted()
	}
	s.saysInUse()
	return outcome{Config: s.inUse(), Restart: restart}
}

// refuseConfig logs the mistakes and returns them.
func (s *server) refuseConfig(err error) outcome {
	out := outcome{Config: s.inUse()}
	for line := range strings.Lines(err.Error()) {
		if line = strings.TrimRight(line, "\n"); !strings.HasPrefix(line, " ") { // an indented line is an excerpt
			out.Mistakes = append(out.Mistakes, line)
			s.log.Error("the configuration is refused, and that of before stays in use", "mistake", line, "config", s.inUse())
		}
	}
	return out
}

// useConfig switches the gateway to a configuration. If it returns an error, everything is as before.
func (s *server) useConfig(c *config.Config) error {
	next := *c
	next.Store, next.StateKeys = s.config.Store, s.config.StateKeys // as the start has completed them
	next.Upstreams = append(slices.Clone(c.Upstreams), s.removedUpstreams(c, time.Now())...)
	planned, err := s.planUpstreams(&next)
	if err != nil {
		return err
	}
	clients, secure := planned.clients()
	serve, err := s.gateway.Prepare(&next, clients, secure)
	if err != nil {
		planned.discardClients()
		return err
	}
	before := s.served()
	for name, one := range planned {
		if one.config.Removed {
			one.until = before[name].keptUntil(time.Now())
		}
	}
	planned.beginClients()
	s.tel.learnTools(&next)
	s.budget.SetAside(int64(next.LargestCall()))
	s.sessions.PerOwner(next.MaxSessionsPerOwner).Halve(next.SignsIn())
	s.shim.Serve(planned.servers(&next, s.credentials))
	serve()
	hash := c.Hash()
	s.config, s.loaded = &next, c
	s.upstreams.Store(&planned)
	s.hash.Store(&hash)
	s.warnOpen()
	s.saysChanges(before, planned)
	for name, one := range before {
		if planned[name] == nil {
			s.gone.Go(context.Background(), func(ctx context.Context) { _ = one.client.retireClient(ctx) })
		}
	}
	return nil
}

// removedUpstreams returns the upstreams that a configuration lacks, and whose tasks can still be read: at
// their path, even if another upstream has it now.
func (s *server) removedUpstreams(c *config.Config, now time.Time) (kept []*config.Upstream) {
	served := s.served()
	for _, name := range slices.Sorted(maps.Keys(served)) {
		one := served[name]
		stays := slices.ContainsFunc(c.Upstreams, func(u *config.Upstream) bool { return u.Name == name })
		if !stays && now.Before(one.keptUntil(now)) {
			u := *one.config
			u.Removed = true
			kept = append(kept, &u)
		}
	}
	return kept
}

// keptUntil is when the last task of an upstream expires that is removed now, or was removed before.
func (one *offered) keptUntil(now time.Time) time.Time {
	if !one.until.IsZero() {
		return one.until
	}
	return now.Add(one.most)
}

// isOver reports whether the time of any removed upstream is over.
func (s *server) isOver(now time.Time) bool {
	for _, one := range s.served() {
		if one.config.Removed && !now.Before(one.until) {
			return true
		}
	}
	return false
}

// saysChanges logs which upstreams have changed.
func (s *server) saysChanges(before, after upstreams) {
	for _, name := range slices.Sorted(maps.Keys(after)) {
		now, old := after[name], before[name]
		switch {
		case now.config.Removed && !old.config.Removed:
			s.log.Info("an upstream takes no calls any more; its tasks can be read", "upstream", name, "until", now.until)
		case now.config.Removed:
		case old == nil || old.config.Removed || old.config.Path != now.config.Path:
			s.saysServing(now.config)
		case old.way != now.way || !reflect.DeepEqual(old.config, now.config):
			s.log.Info("an upstream has changed", "upstream", name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(before)) {
		if after[name] == nil {
			s.log.Info("an upstream is gone", "upstream", name)
		}
	}
}

// handler answers POST /reload: 200 once the file is in use, and 422 with its mistakes. Whoever
// serves it lets operators in, and no page of another origin.
func (r *reloader) handler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		answer := make(chan outcome, 1)
		select {
		case r.wishes <- answer:
		case <-q.Context().Done():
			return
		}
		found, status := <-answer, http.StatusOK
		if len(found.Mistakes) > 0 {
			status = http.StatusUnprocessableEntity
		}
		writeStatus(w, status, found)
	})
}

// listenHangups has SIGHUP reload the configuration, until stop is called. If the process has no file to
// read, or its terminal is closed, SIGHUP calls end.
func (s *server) listenHangups(end func()) (stop func()) {
	ignored, ofTerminal := signal.Ignored(syscall.SIGHUP), hasTerminal()
	if ignored && s.load == nil {
		return func() {}
	}
	signals, over := make(chan os.Signal, 1), make(chan struct{})
	s.hangups = make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGHUP)
	go func() {
		for {
			select {
			case <-over:
				return
			case hangup := <-signals:
				if s.load == nil || ofTerminal && !ignored && !hasTerminal() {
					signal.Stop(signals)
					end()
					return
				}
				select {
				case s.hangups <- hangup:
				default: // a reload is due already
				}
			}
		}
	}()
	return func() { signal.Stop(signals); close(over) }
}

// hasTerminal reports whether the process belongs to a terminal.
func hasTerminal() bool {
	f, err := os.Open("/dev/tty")
	if err != nil {
		return false
	}
	return f.Close() == nil
}

// askReload is the verb that has a running gateway read its configuration anew. It prints the hash of the
// configuration that is then in use.
func askReload(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("reload", flag.ContinueOnError)
	file, address := flags.String("config", "", ""), flags.String("admin", "", "")
	key := flags.String("key", os.Getenv(terminal.KeyVariable), "")
	if code, done := parseFlags(flags, args, stdout, stderr); done {
		return code
	}
	if flags.NArg() > 0 || *file != "" && *address != "" {
		return reportMisuse(stderr, "reload: give either --config FILE or --admin HOST:PORT")
	}
	var answer outcome
	g, err := gatewayAt(*file, *address, *key)
	if err == nil {
		err = g.Reload(ctx, &answer)
	}
	if err == nil && len(answer.Mistakes) > 0 {
		err = fmt.Errorf("the gateway goes on with configuration %s", answer.Config)
	}
	for _, mistake := range answer.Mistakes {
		fmt.Fprintln(stderr, mistake)
	}
	for _, key := range answer.Restart {
		fmt.Fprintf(stderr, "taskgate: only a restart changes %s\n", key)
	}
	if err != nil {
		return reportFailure(stderr, err)
	}
	return writeOutput(stdout, stderr, answer.Config+"\n")
}
