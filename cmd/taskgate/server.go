package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync/atomic"
	"time"

	"taskgate/gateway"
	"taskgate/gateway/auth"
	"taskgate/gateway/config"
	"taskgate/gateway/operator"
	"taskgate/gateway/upstream/forward"
	"taskgate/gateway/upstream/reading"
	"taskgate/internal/budget"
	"taskgate/internal/metrics"
	"taskgate/internal/work"
	"taskgate/redisstore"
	"taskgate/shim"
	"taskgate/shim/engine"

	"go.opentelemetry.io/otel"
	"golang.org/x/sync/errgroup"
)

// Limits of the HTTP server. They leave out a write timeout: it would cut event streams, whose writes have
// deadlines of their own.
const (
	readHeaderTimeout = 10 * time.Second
	idleTimeout       = 120 * time.Second
)

// closeTimeout bounds the work after the drain: sessions are deleted upstream, the goodbye reaches the store,
// spans are sent. If the store takes all of it, the others get closeLeast.
const (
	closeTimeout = 5 * time.Second
	closeLeast   = time.Second
)

// bytesWait is how long a message waits for bytes in flight before it is refused. Clients give up a call
// after a minute or more.
const bytesWait = time.Minute

// processIdle is how long an unused process of a server over stdio is kept: as long as the session of a client that
// opens no stream, so that the session finds what the process keeps for it, such as a browser.
const processIdle = time.Hour

// server is one gateway process with everything it holds open.
type server struct {
	config *config.Config // reloads change it; they end before the drain begins
	log    *slog.Logger
	plain  *slog.Logger // the same, but for stderr only
	tel    *telemetry
	*reloader

	requests    work.Group    // in flight
	bytesWait   time.Duration // the constant, except in tests
	processIdle time.Duration // 0: a process of a server lasts as long as this one

	replica  shim.Replica
	budget   *budget.Bytes
	store    *redisstore.Store
	sessions *redisstore.Sessions
	// credentials are those that clients of passthrough have shown, for requests to servers.
	credentials *auth.Credentials
	upstreams   atomic.Pointer[upstreams]
	shim        *engine.Shim
	windows     *windows // of a client over stdio whose tasks are in a folder; else nil
	gateway     *gateway.Gateway
	audit       io.Closer    // nil unless it is a file
	auditLog    *slog.Logger // nil for none

	network
	listener  net.Listener
	files     tlsFiles // of the listener
	http      *http.Server
	admin     *admin // nil if it is not configured
	ready     *readiness
	operators *operators

	until time.Time // when the work after the drain must be done; zero before that begins
}

// newServer makes the server of a configuration. It opens nothing yet.
func newServer(c *config.Config, stderr io.Writer) *server {
	log := newLogger(c.Log, stderr)
	s := &server{config: c, reloader: newReloader(c), log: log, plain: log, bytesWait: bytesWait, processIdle: processIdle, network: systemNetwork()}
	s.upstreams.Store(&upstreams{})
	return s
}

// openServer builds the gateway and opens its listener; if it fails, it closes what it has opened. It
// contacts the store only: upstreams are contacted at the first call.
func (s *server) openServer(ctx context.Context) error {
	err := s.buildGateway(ctx)
	if err == nil {
		err = s.listenOn(ctx)
	}
	if err != nil {
		return errors.Join(err, s.closeAll())
	}
	return nil
}

func (s *server) buildGateway(ctx context.Context) (err error) {
	s.replica = newReplica()
	otel.SetErrorHandler(newExportFailures(s.log))
	if s.tel, err = newTelemetry(ctx, s.replica, s.config.Admin != ""); err != nil {
		return fmt.Errorf("telemetry: %w", err)
	}
	s.tel.learnTools(s.config)
	s.log = s.tel.logger(s.log)
	slog.SetDefault(s.log)
	if s.store, err = s.openStore(ctx); err != nil {
		return fmt.Errorf("store: %w", err)
	}
	s.budget = budget.New(int64(s.config.BytesInFlight(memoryLimit())), int64(s.config.LargestCall()), s.bytesWait)
	s.tel.metrics.ReadBytes(s.budget.Held)
	keys, err := gateway.StateKeys(s.config)
	if err != nil {
		return err
	}
	s.credentials = auth.NewCredentials(keys, s.store)
	planned, err := s.planUpstreams(s.config)
	if err != nil {
		return err
	}
	planned.beginClients()
	s.upstreams.Store(&planned)
	marks, err := markKeys(s.config.StateKeys)
	if err != nil {
		return err
	}
	if s.shim, err = s.newShim(s.store, s.replica, marks, s.tel.metrics); err != nil {
		return err
	}
	s.tel.metrics.ReadKept(s.shim.Kept.Bytes)
	audit, file, err := newAudit(s.config.Audit, s.tel, s.log)
	if err != nil {
		return fmt.Errorf("audit: %w", err)
	}
	s.audit, s.auditLog = file, audit
	clients, secure := planned.clients()
	s.sessions = s.store.Sessions(s.shim.Heart, s.config.Limits.Within(memoryLimit()).MaxSessions, s.config.SessionIdle).PerOwner(s.config.MaxSessionsPerOwner).Halve(s.config.SignsIn())
	s.sessions.KeepInAll(int64(s.config.LogBytes(memoryLimit())))
	options := gateway.Options{
		Memory: memoryLimit(), Usage: map[string]func() float64{"max_tasks": s.shim.TaskUsage, "max_kept_bytes": s.shim.Kept.Usage, "max_sessions": s.sessions.Usage}, Audit: audit, Credentials: s.credentials, TLS: secure,
		Config: s.config, Shim: s.shim, Upstreams: clients, Budget: s.budget, Logger: s.log,
		Sessions:       s.sessions,
		TracerProvider: s.tel.traces, Metrics: s.tel.metrics, Version: moduleVersion(),
	}
	if s.windows != nil {
		options.Shim = windowed{s.shim, s.windows}
	}
	s.gateway, err = gateway.New(options)
	return err
}

// servers returns the upstreams as the shim knows them.
func (us upstreams) servers(c *config.Config, credentials *auth.Credentials) map[string]shim.Server {
	servers := make(map[string]shim.Server, len(us))
	for _, one := range us {
		u := one.config
		servers[u.Name] = shim.Server{
			Upstream: one.client, Removed: u.Removed, Before: us.removedAt(u), Policy: policies(u, c.AdminContent), Other: policyOf(u.Defaults, config.Off),
			Concurrency: u.Concurrency, MaxTasks: c.Limits.Within(memoryLimit()).MaxTasks, MaxTasksPerOwner: u.MaxTasksPerOwner, Halved: c.SignsIn(),
			Represent: func(ctx context.Context, call shim.Session) context.Context {
				if c := credentials.Represent(u.Name, call.Token); c != nil {
					ctx = forward.With(ctx, &forward.Parts{Credential: c})
				}
				return ctx
			},
			SealToken: forward.SealToken, BringToken: forward.BringToken,
		}
	}
	return servers
}

// removedAt returns the removed upstreams whose path is now u's, if both have an auth of their own or neither.
// The names in an auth stay those of the same callers when it changes.
func (us upstreams) removedAt(u *config.Upstream) (names []string) {
	for name, one := range us {
		if one.config.Removed && name != u.Name && one.config.Path == u.Path && (one.config.Auth == nil) == (u.Auth == nil) {
			names = append(names, name)
		}
	}
	return names
}

// newShim makes the shim of a store, as this replica of it. keys mark the ids of its tasks; m may be nil.
func (s *server) newShim(store *redisstore.Store, replica shim.Replica, keys [][]byte, m *metrics.Metrics) (*engine.Shim, error) {
	kept, keptOfOne := s.config.KeptBytes(memoryLimit())
	settle := time.Duration(0) // the default
	if s.config.OwnsStore() {
		settle = -1 // it has no failover, which could lose the end of a task
	}
	return engine.New(engine.Options{
		Settle: settle, SettleBytes: int64(config.EndBytes(memoryLimit())), MaxKeptBytes: int64(kept), MaxKeptBytesPerOwner: int64(keptOfOne), Kept: keptTasks(store),
		Replica: replica, Store: store, Repeats: redisstore.NewRepeats(store), Pauses: store.Overview(), Servers: s.served().servers(s.config, s.credentials), Heartbeat: s.config.Heartbeat,
		StoreTimeout: s.config.StoreTimeout, StoreWait: s.config.StoreWait, MarkKeys: keys, CheckAnswer: reading.CheckAnswer,
		Budget: s.budget, Logger: s.log, Tracer: s.tel.traces.Tracer("taskgate/shim"), Metrics: m,
	})
}

// listenOn binds the addresses, that of operators first, so that a gateway that takes calls can also be asked
// whether it is ready.
func (s *server) listenOn(ctx context.Context) (err error) {
	s.ready = s.newReadiness(ctx)
	s.tel.metrics.ReadParts(s.ready.reachableParts)
	s.tel.metrics.ReadConfig(s.inUse)
	if err = s.showOperators(); err != nil {
		return err
	}
	if s.admin, err = newAdmin(ctx, s.config.Admin, s, s.tel.metricsPage(s.log)); err != nil {
		return err
	}
	s.files.config = s.config.TLS
	if _, err = s.files.readFiles(); err != nil {
		return fmt.Errorf("tls: %w", err)
	}
	if s.listener, err = s.network.listen(ctx, "tcp", s.config.Listen); err != nil {
		return err
	}
	if s.config.TLS.CertFile != "" {
		s.listener = tls.NewListener(s.listener, &tls.Config{
			MinVersion:         tls.VersionTLS12,
			GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return s.files.now.Load(), nil },
		})
	}
	s.http = &http.Server{
		Handler:           countRequests(&s.requests, partConnections(ctx, s.gateway.HTTP())),
		ConnState:         s.gateway.ConnState,
		ReadHeaderTimeout: readHeaderTimeout,
		IdleTimeout:       idleTimeout,
		ErrorLog:          slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
	s.listener = guardHeads(s.tel.metrics, s.http, s.listener)
	s.warnOpen()
	return nil
}

// showOperators makes the parts that show this process to operators.
func (s *server) showOperators() (err error) {
	view, begun := s.store.Overview(), time.Now().UTC().Truncate(time.Second)
	s.operators, err = newOperators(s.config, isLoopback(s.config.Admin), operator.DeploymentOptions{
		Tasks: engine.NewOperator(s.shim, view), Store: view, Replica: s.replica, Metrics: s.tel.metrics, Logger: s.log, TraceAt: s.config.TraceAt,
		DescribeStore: func(ctx context.Context) operator.Store { return describeStore(ctx, s.config, view) },
		Say: func() operator.Report {
			host, _ := os.Hostname() // "" if unknown
			r := operator.Report{Host: host, Address: s.listener.Addr().String(), Version: moduleVersion(), Config: s.inUse(), Since: begun, NotesUse: true}
			r.Sessions, r.Streams = s.gateway.Open()
			r.Held = heldAt(s.gateway)
			r.Upstreams = s.served().reported(s.ready.askParts(reportAge, nil).Upstreams)
			return r
		},
	}, operator.Options{Version: moduleVersion(), Replica: string(s.replica), Audit: s.auditLog}, s.log)
	return err
}

// warnOpen warns if everybody may call.
func (s *server) warnOpen() {
	if s.config.Open() && s.config.TLS.ClientCAFile == "" && !isLoopback(s.config.Listen) {
		s.log.Warn("anybody who can connect may call: configure auth, or listen on a loopback address", "listen", s.config.Listen)
	}
}

// sweepEvery is the time between two sweeps of the store.
const sweepEvery = 30 * time.Second

// sweepStore takes expired tasks out of the sets of tasks, and ends sessions with servers that no replica uses, until ctx
// ends. A failed sweep is done another time.
func (s *server) sweepStore(ctx context.Context) error {
	for work.Pause(ctx, sweepEvery) == nil {
		_ = s.store.Overview().Sweep(ctx)
		s.windows.sweep(ctx)
		for _, one := range s.served() {
			one.client.now.Load().SweepSessions(ctx)
		}
	}
	return nil
}

// serveUntilEnd serves until ctx ends, then drains and closes.
func (s *server) serveUntilEnd(ctx context.Context) error {
	if s.config.Store == config.StoreEmbedded {
		s.log.Warn("tasks are kept in memory and end with this process")
	} else {
		s.log.Info("tasks are kept", "in", storeKind(s.config))
	}
	for _, u := range s.config.Upstreams {
		s.saysServing(u)
	}
	s.saysTaskResult()
	s.saysInUse()
	if s.admin != nil {
		s.log.Info("answering operators", "address", s.admin.listener.Addr().String())
		s.operators.sayConsole(s.admin.listener.Addr().String(), s.log, s.plain)
	}
	s.notifyReady()
	loops, stop := outlastingContext(ctx)
	defer stop()
	g, failed := errgroup.WithContext(ctx)
	g.Go(func() error { return ignoreExpected(s.shim.Run(loops), context.Canceled) })
	g.Go(func() error { return ignoreExpected(s.gateway.Run(loops), context.Canceled) })
	g.Go(func() error { return ignoreExpected(s.http.Serve(s.listener), http.ErrServerClosed) })
	g.Go(s.admin.serveAdmin)
	if s.admin != nil || !s.config.OwnsStore() { // else the report has no readers
		g.Go(func() error { return ignoreExpected(s.operators.deployment.Run(loops), context.Canceled) })
	}
	if s.admin != nil && s.operators.methods != nil {
		g.Go(func() error { return s.operators.methods.Run(loops) })
	}
	g.Go(func() error { return s.sweepStore(loops) })
	g.Go(func() error { return s.store.AwaitRemoval(loops) })
	g.Go(func() error { return s.notifyAlive(loops) })
	reloaded := make(chan struct{})
	g.Go(func() error {
		defer close(reloaded)
		s.awaitReloads(failed)
		return nil
	})
	g.Go(func() error {
		<-failed.Done() // a signal, or a part that failed
		<-reloaded      // the configuration stays as it is from here on
		defer stop()
		s.notifyStopping()
		if ctx.Err() != nil {
			s.lingerDraining()
		}
		// The admin listener ends last, so that it reports the drain.
		return errors.Join(s.drainWork(loops), s.admin.close())
	})
	return s.closeAfter(g)
}

// closeAfter waits for the parts of a server to end, then releases everything and logs that.
func (s *server) closeAfter(parts *errgroup.Group) error {
	err := errors.Join(parts.Wait(), s.closeAll())
	s.log.Info("stopped")
	return err
}

func (s *server) saysServing(u *config.Upstream) {
	scheme := "http://"
	if s.config.TLS.CertFile != "" {
		scheme = "https://"
	}
	s.log.Info("serving", "upstream", u.Name, "at", scheme+s.listener.Addr().String()+u.Path, "from", whereFrom(u))
}

// saysTaskResult names the tool that reads tasks, and the upstreams that have it.
func (s *server) saysTaskResult() {
	var names []string
	for _, u := range s.config.Upstreams {
		if u.MakesTasks() && u.WithoutTasks != config.WithoutTasksBlock {
			names = append(names, u.Name)
		}
	}
	if len(names) > 0 {
		s.log.Info("a client that allows tools by name has to allow task_result as well: it gives the result of a slow call", "upstreams", names)
	}
}

// outlastingContext is the context of the loops. They outlast ctx, because running tasks need the heartbeat
// during the drain.
func outlastingContext(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithCancel(context.WithoutCancel(ctx))
}

// lingerDraining serves for drain_delay as before, while /readyz says that the process drains. Each
// connection ends with its next answer, so that its client finds another replica.
func (s *server) lingerDraining() {
	if s.admin == nil || s.config.DrainDelay == 0 {
		return // /readyz is off, or the delay is
	}
	s.log.Info("not ready any more; requests are taken for a while", "delay", s.config.DrainDelay)
	<-time.After(s.config.DrainDelay)
}

// countRequests counts the requests in flight. http.Server waits only for connections; a request whose client
// has gone has none, and its answer must still be stored.
func countRequests(requests *work.Group, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests.Do(func() { next.ServeHTTP(w, r) })
	})
}

// partConnections ends each connection with its next answer once ctx has ended.
func partConnections(ctx context.Context, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if ctx.Err() != nil {
			w.Header().Set("Connection", "close")
		}
		next.ServeHTTP(w, r)
	})
}

// drainWork ends the streams that last forever, refuses new calls, and gives running calls until
// drain_timeout; tasks can be read meanwhile. Calls that still block then get an error. Tasks that another
// replica can go on with are handed over, and the others fail.
func (s *server) drainWork(ctx context.Context) error {
	s.log.Info("draining; a second signal ends the process at once", "timeout", s.config.DrainTimeout)
	patient, stop := context.WithTimeout(ctx, s.config.DrainTimeout)
	defer stop()
	if err := s.gateway.Close(patient); err != nil {
		s.log.Warn("streams did not end in time", "err", err)
	}
	if err := s.shim.Drain(patient); err != nil {
		s.log.Warn("calls are still running; "+s.taskFate(), "waited", s.config.DrainTimeout)
	}
	hasty, stop := s.hastyContext(ctx)
	defer stop()
	if err := s.shim.Close(hasty); err != nil {
		s.log.Warn("not everything that was left could be recorded in time", "err", err)
	}
	if err := s.http.Shutdown(hasty); err != nil {
		return s.http.Close()
	}
	if err := s.requests.Wait(hasty); err != nil {
		s.log.Warn("not every answer could be kept in time for a client that comes back", "err", err)
	}
	return nil
}

// hastyContext bounds all the work after the drain together.
func (s *server) hastyContext(ctx context.Context) (context.Context, context.CancelFunc) {
	if s.until.IsZero() {
		s.until = time.Now().Add(closeTimeout)
	}
	return context.WithTimeout(ctx, max(time.Until(s.until), closeLeast))
}

// taskFate says what becomes of running tasks when this process ends.
func (s *server) taskFate() string {
	_, onDisk := s.config.StoreFolder()
	switch {
	case onDisk:
		return "tasks that can be gone on with go on at the next start, the others fail"
	case s.config.OwnsStore():
		return "their tasks are lost with this process"
	}
	return "tasks that can be gone on with are left to other replicas, the others fail"
}

// closeAll releases everything that was opened, in the order of its use.
func (s *server) closeAll() error {
	ctx, stop := s.hastyContext(context.Background())
	defer stop()
	var errs []error
	if s.http != nil {
		errs = append(errs, s.http.Close())
	}
	if s.admin != nil {
		errs = append(errs, s.admin.close())
	}
	if s.shim != nil {
		errs = append(errs, s.shim.Close(ctx), s.windows.close(ctx))
	}
	errs = append(errs, s.served().closeClients(ctx), s.gone.Close(ctx))
	if s.store != nil {
		errs = append(errs, s.store.Close())
	}
	if s.audit != nil {
		errs = append(errs, s.audit.Close())
	}
	if s.tel != nil {
		if err := s.tel.flushAll(ctx); err != nil {
			s.log.Warn("not all telemetry could be sent", "err", err)
		}
	}
	return errors.Join(errs...)
}

// ignoreExpected returns err unless it is the expected end.
func ignoreExpected(err, expected error) error {
	if errors.Is(err, expected) {
		return nil
	}
	return err
}

// newReplica names this process for as long as it runs. The name begins the ids that are sent upstream, so it
// is short; its 80 random bits are new at each start.
func newReplica() shim.Replica {
	id := shim.NewID()
	return shim.Replica(id[:8] + id[24:])
}
