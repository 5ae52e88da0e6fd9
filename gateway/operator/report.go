package operator

import (
	"cmp"
	"context"
	"encoding/json"
	"log/slog"
	"maps"
	"slices"
	"time"

	"taskgate/internal/metrics"
	"taskgate/shim"
)

const (
	// reportEvery is the time between two reports of a replica, and reportKept how long a report is kept, also
	// after the replica is gone.
	reportEvery = 3 * time.Second
	reportKept  = time.Hour
	// lastReport bounds the last report, which is made while the process ends.
	lastReport = 500 * time.Millisecond
	// minutesKept is how long the counts of a minute are kept, which are shown for an hour.
	minutesKept = 2 * time.Hour
	// maxTools bounds the tools of an upstream in a report: their names come from clients.
	maxTools = 200
)

// Report is what a replica tells the others of itself.
type Report struct {
	Host     string    `json:"host"`
	Address  string    `json:"address"`
	Version  string    `json:"version"`
	Config   string    `json:"config"`
	Since    time.Time `json:"since"`
	Draining bool      `json:"draining,omitempty"`
	// NotesUse says that the store knows which sessions with servers the replica uses.
	NotesUse  bool               `json:"notesUse,omitempty"`
	Upstreams []ReportedUpstream `json:"upstreams"`
	// Sessions and Streams are those of clients that have something going on, and Held is who has most.
	Sessions int    `json:"sessions"`
	Streams  int    `json:"streams"`
	Held     []Held `json:"held,omitempty"`
}

// Held is what a client has at a replica.
type Held struct {
	Principal string `json:"principal,omitempty"`
	Address   string `json:"address,omitempty"`
	Holdings
}

// NotesUse reports whether a replica says so in its report; false before its first one.
func NotesUse(about []byte) bool {
	var r Report
	return json.Unmarshal(about, &r) == nil && r.NotesUse
}

// ReportedUpstream is an upstream as one replica sees it.
type ReportedUpstream struct {
	Name      string   `json:"name"`
	Transport string   `json:"transport,omitempty"`
	Era       string   `json:"era,omitempty"`
	Reachable bool     `json:"reachable"`
	Error     string   `json:"error,omitempty"`
	Removed   bool     `json:"removed,omitempty"`
	Policies  []Policy `json:"policies"`
	Calls     int      `json:"calls"`
	Queued    int      `json:"queued"`
	Tools     []Tool   `json:"tools"`
}

// Operator sees and stops the calls and tasks of everybody: an engine.Operator, which says what each method does.
type Operator interface {
	TaskOperator
	PauseOperator
	Loads() map[string]metrics.Load
	Shares() map[shim.Share]int
	Draining() bool
}

// TaskOperator is the part of an Operator that works on tasks.
type TaskOperator interface {
	Search(ctx context.Context, q shim.Query) (tasks []shim.Task, next string, err error)
	Read(ctx context.Context, id shim.ID, part shim.Part) (shim.Task, error)
	Arguments(t shim.Task) json.RawMessage
	Cancel(ctx context.Context, id shim.ID, by string) (shim.Task, error)
	Rerun(ctx context.Context, id shim.ID, by string) (old, made shim.Task, err error)
	RerunRefusal(t shim.Task) string
}

// PauseOperator is the part of an Operator that pauses calls.
type PauseOperator interface {
	Pause(ctx context.Context, p shim.Pause) (shim.Pause, error)
	Resume(ctx context.Context, p shim.Pause) (shim.Pause, error)
	Paused(ctx context.Context) ([]shim.Pause, error)
}

// DeploymentOptions are what a Deployment is made of.
type DeploymentOptions struct {
	Tasks   Operator
	Store   shim.Overview
	Replica shim.Replica
	// Say describes this replica and its upstreams, without what runs there.
	Say     func() Report
	Metrics *metrics.Metrics
	// DescribeStore asks for how the store is.
	DescribeStore func(ctx context.Context) Store
	// TraceAt is where a trace is shown, "" for nowhere.
	TraceAt func(id string) string
	Logger  *slog.Logger
}

// NewDeployment returns the Source of this replica.
func NewDeployment(o DeploymentOptions) *Deployment { return &Deployment{o: o} }

// Run reports until ctx ends. A failed report leaves clients alone: operators see the one before.
func (d *Deployment) Run(ctx context.Context) error {
	tick := time.NewTicker(reportEvery)
	defer tick.Stop()
	for {
		if err := d.sendReport(ctx); err != nil && ctx.Err() == nil {
			d.o.Logger.Debug("operators do not hear of this replica", "err", err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			last, stop := context.WithTimeout(context.Background(), lastReport)
			defer stop()
			_ = d.sendReport(last) // it says that the replica has stopped: otherwise it looks as if it had died
			return context.Cause(ctx)
		}
	}
}

// sendReport reports the state of this replica, and stores its counts, of this minute as well.
func (d *Deployment) sendReport(ctx context.Context) error {
	ctx, stop := context.WithTimeoutCause(ctx, reportEvery, shim.ErrUnavailable)
	defer stop()
	now := time.Now().Unix() / 60
	recent := d.o.Metrics.Recent()
	var failed error
	for _, at := range slices.Sorted(maps.Keys(recent)) {
		if at < d.due || failed != nil {
			continue
		}
		note, _ := json.Marshal(recent[at]) // counts are plain values
		if failed = d.o.Store.Note(ctx, d.o.Replica, time.Unix(at*60, 0), note, minutesKept); failed == nil {
			d.due = min(at+1, now)
		}
	}
	r := d.o.Say()
	r.Draining = d.o.Tasks.Draining()
	loads := d.o.Tasks.Loads()
	for i := range r.Upstreams {
		u := &r.Upstreams[i]
		u.Error = cutText(u.Error)
		load := loads[u.Name]
		u.Calls, u.Queued, u.Tools = load.Calls, load.Queued, toolsOf(load)
	}
	r.Held = d.holders(r.Held)
	about, _ := json.Marshal(r) // texts and times can always be written
	return cmp.Or(d.o.Store.Report(ctx, d.o.Replica, about, reportKept), failed)
}

func toolsOf(l metrics.Load) []Tool {
	tools := []Tool{}
	for _, name := range slices.Sorted(maps.Keys(l.Tools)) {
		one := l.Tools[name]
		if one.Oldest.IsZero() { // its calls are no tasks
			continue
		}
		oldest := one.Oldest.UTC()
		tools = append(tools, Tool{Tool: cutText(name), Running: one.Running, InputRequired: one.InputRequired, Queued: one.Queued, Oldest: &oldest})
		if len(tools) == maxTools {
			break
		}
	}
	return tools
}

// heard is a replica with its own report; that is zero before the first one.
type heard struct {
	shim.Standing
	Report
}

// readReports reads the reports of all replicas.
func (d *Deployment) readReports(ctx context.Context) ([]heard, error) {
	standing, err := d.o.Store.Replicas(ctx)
	all := make([]heard, len(standing))
	for i, s := range standing {
		all[i].Standing = s
		_ = json.Unmarshal(s.About, &all[i].Report) // it is missing before the first report
	}
	return all, err
}

// Replicas implements Source.
func (d *Deployment) Replicas(ctx context.Context) (Replicas, error) {
	all, err := d.readReports(ctx)
	out := Replicas{Replicas: make([]Replica, len(all))}
	for i, h := range all {
		out.Replicas[i] = Replica{
			Name: string(h.Replica), Alive: h.Alive, SeenAt: h.Seen, Host: h.Host, Address: h.Address, Version: h.Version,
			Config: h.Config, Draining: h.Draining, Tasks: h.Running, Sessions: h.Sessions, Streams: h.Streams,
		}
		if !h.Since.IsZero() {
			out.Replicas[i].Since = &h.Since
		}
	}
	slices.SortStableFunc(out.Replicas, func(a, b Replica) int { return startOf(a).Compare(startOf(b)) })
	return out, err
}

// Store implements Source.
func (d *Deployment) Store(ctx context.Context) (Store, error) {
	ctx, stop := context.WithTimeoutCause(ctx, reportEvery, shim.ErrUnavailable)
	defer stop()
	return d.o.DescribeStore(ctx), nil
}

func startOf(r Replica) time.Time {
	if r.Since == nil {
		return r.SeenAt
	}
	return *r.Since
}

// Upstreams implements Source.
func (d *Deployment) Upstreams(ctx context.Context) (Upstreams, error) {
	all, err := d.readReports(ctx)
	if err != nil {
		return Upstreams{}, err
	}
	slices.SortStableFunc(all, func(a, b heard) int { return b.Since.Compare(a.Since) }) // policies are those of the newest
	byName := map[string]*Upstream{}
	for _, h := range all {
		for _, u := range h.Upstreams {
			if h.Alive {
				addReport(byName, string(h.Replica), u)
			}
		}
	}
	paused, err := d.o.Tasks.Paused(ctx)
	if err != nil {
		return Upstreams{}, err
	}
	for _, p := range paused {
		u := byName[p.Upstream]
		if u == nil { // no replica has it any more
			u = &Upstream{Name: p.Upstream, Removed: true, Policies: []Policy{}, Tools: []Tool{}, Replicas: []Reach{}}
			byName[p.Upstream] = u
		}
		u.Paused = append(u.Paused, pauseOf(p))
	}
	out := Upstreams{Upstreams: []Upstream{}}
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		u := byName[name]
		slices.SortFunc(u.Tools, func(a, b Tool) int { return cmp.Compare(a.Tool, b.Tool) })
		slices.SortFunc(u.Replicas, func(a, b Reach) int { return cmp.Compare(a.Replica, b.Replica) })
		out.Upstreams = append(out.Upstreams, *u)
	}
	return out, nil
}

func pauseOf(p shim.Pause) Pause {
	return Pause{Upstream: p.Upstream, Tool: cutText(p.Tool), Operator: p.By, Since: p.Since}
}

// Pause implements Source.
func (d *Deployment) Pause(ctx context.Context, upstream, tool, operator string) (Pause, error) {
	p, err := d.o.Tasks.Pause(ctx, shim.Pause{Upstream: upstream, Tool: tool, By: operator})
	return pauseOf(p), err
}

// Resume implements Source.
func (d *Deployment) Resume(ctx context.Context, upstream, tool string) (Pause, error) {
	p, err := d.o.Tasks.Resume(ctx, shim.Pause{Upstream: upstream, Tool: tool})
	return pauseOf(p), err
}

// addReport adds one replica's report of an upstream.
func addReport(byName map[string]*Upstream, replica string, u ReportedUpstream) {
	sum := byName[u.Name]
	if sum == nil {
		sum = &Upstream{Name: u.Name, Reachable: true, Removed: true, Policies: u.Policies, Tools: []Tool{}, Replicas: []Reach{}}
		byName[u.Name] = sum
	}
	reach := Reach{Replica: replica, Reachable: u.Reachable, Error: u.Error, Calls: u.Calls, Queued: u.Queued}
	for _, tool := range u.Tools {
		reach.Tasks += tool.Running + tool.InputRequired + tool.Queued
		at := slices.IndexFunc(sum.Tools, func(t Tool) bool { return t.Tool == tool.Tool })
		if at < 0 {
			sum.Tools = append(sum.Tools, tool)
			continue
		}
		t := &sum.Tools[at]
		t.Running, t.InputRequired, t.Queued = t.Running+tool.Running, t.InputRequired+tool.InputRequired, t.Queued+tool.Queued
		if t.Oldest == nil || tool.Oldest != nil && tool.Oldest.Before(*t.Oldest) {
			t.Oldest = tool.Oldest
		}
	}
	sum.Transport, sum.Era = cmp.Or(sum.Transport, u.Transport), cmp.Or(sum.Era, u.Era)
	sum.Reachable, sum.Removed = sum.Reachable && u.Reachable, sum.Removed && u.Removed
	sum.Calls, sum.Queued, sum.Tasks = sum.Calls+u.Calls, sum.Queued+u.Queued, sum.Tasks+reach.Tasks
	sum.Replicas = append(sum.Replicas, reach)
}

// minutesShown is how many minutes Stats has.
const minutesShown = 60

// Stats implements Source.
func (d *Deployment) Stats(ctx context.Context, upstream string) (Stats, error) {
	out := Stats{Minutes: make([]Minute, minutesShown), Bounds: metrics.RecentBounds}
	first := time.Now().Unix()/60 - minutesShown + 1
	times := make([]time.Time, minutesShown)
	for i := range times {
		times[i] = time.Unix((first+int64(i))*60, 0).UTC()
		out.Minutes[i].At = times[i]
	}
	notes, err := d.o.Store.Notes(ctx, times)
	if err != nil {
		return Stats{}, err
	}
	for i := range out.Minutes {
		var sum metrics.Counts
		for _, note := range notes[i] {
			var minute map[string]metrics.Counts
			_ = json.Unmarshal(note, &minute) // a note of another release may be empty to it
			for name, c := range minute {
				if upstream == "" || upstream == name {
					sum.Add(c)
				}
			}
		}
		out.Minutes[i].Counts = Counts{Calls: sum.Calls, Made: sum.Made, Ended: sum.Ended, Durations: sum.Durations}
	}
	return out, nil
}
