package main

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"taskgate/internal/compare/peers"
)

// figure is a column of the costs.
type figure struct {
	name string
	of   func(cost) float64
	low  bool // the least is best
	form string

	unranked bool // the best is not marked
	spread   func(cost) float64
	most     func(cost) float64
}

// isQuiet reports whether the machine did nothing else when the costs were measured.
func isQuiet(all []entry[cost]) bool {
	return !slices.ContainsFunc(all, func(e entry[cost]) bool { return first(e.Load) >= quiet })
}

// figures are the columns that every peer has. Rates and times say nothing on a machine that is busy.
func figures(undisturbed bool) []figure {
	var all []figure
	for _, k := range kinds {
		all = append(all, figure{
			name: "calls/s, " + k.name + ", of the bare proxy", of: func(c cost) float64 { return c.OfBare[k.name] }, form: "%.2f",
			unranked: !undisturbed, spread: func(c cost) float64 { return c.Spread[k.name] },
		})
	}
	for _, k := range kinds {
		all = append(all, figure{name: "µs of CPU per call, " + k.name, of: func(c cost) float64 { return c.CPU[k.name] }, low: true, form: "%.0f", most: func(c cost) float64 { return c.CPUMost[k.name] }})
	}
	return append(all,
		figure{name: "calls that failed", of: func(c cost) float64 { return float64(c.Errors) }, low: true, form: "%.0f", unranked: true},
		figure{name: "p50, ms", of: func(c cost) float64 { return c.P50 }, low: true, form: "%.1f", unranked: !undisturbed},
		figure{name: "p99, ms", of: func(c cost) float64 { return c.P99 }, low: true, form: "%.1f", unranked: !undisturbed},
		figure{name: "idle, MiB", of: func(c cost) float64 { return c.Idle }, low: true, form: "%.0f"},
		figure{name: "a session, KiB", of: func(c cost) float64 { return c.Session }, low: true, form: "%.0f"},
		figure{name: "a waiting call, KiB", of: func(c cost) float64 { return c.Waiting }, low: true, form: "%.0f"},
		figure{name: "cold start, s", of: func(c cost) float64 { return c.ColdStart }, low: true, form: "%.1f"},
		figure{name: "on disk, MiB", of: func(c cost) float64 { return c.Size }, low: true, form: "%.1f"},
	)
}

// costs writes what the peers cost.
func (p *page) costs() {
	all := rowOf[cost](p, "cost")
	if len(all) == 0 {
		return
	}
	p.line("## Cost\n")
	p.line("Eight connections, each with a session, call tools of the same server; the peers take turns within each round. A rate is told as a part of the bare proxy's in the")
	p.line("same round (the median of the rounds, and half of the distance between the least and the most). CPU is that of the peer's processes alone, without the server's: the least of the rounds, and")
	p.line("the most; p50 and p99 are of plain calls at 50 per second, the least of the rounds, and include the server. Memory is the share of each page (PSS) of the peer's processes; cold start is from the")
	p.line("start of the process to the first list of tools.")
	undisturbed := isQuiet(all)
	if undisturbed {
		p.line("The machine did nothing else. The best of each line among the gateways is **bold**.\n")
	} else {
		p.line("**The machine was shared and busy** (its load is with [each figure](#when-and-where)): the rates spread as widely as they differ, so nothing")
		p.line("follows from them or from the times, and none is marked, until `make compare ROWS=cost` has measured them on a quiet machine. CPU per call, memory and size depend less on that: there the best of each")
		p.line("line among the gateways is **bold**.\n")
	}
	fs := figures(undisturbed)
	best := make([]float64, len(fs))
	for i, f := range fs {
		for _, e := range all {
			v := f.of(e.Found)
			if f.unranked || e.Failed != "" || e.Peer == "directly" || e.Peer == "bare proxy" || v == 0 {
				continue
			}
			if best[i] == 0 || f.low && v < best[i] || !f.low && v > best[i] {
				best[i] = v
			}
		}
	}
	cells := []string{""}
	var notes []string
	var shown []entry[cost]
	for _, e := range all {
		if e.Failed != "" {
			notes = append(notes, fmt.Sprintf("%s: %s.", e.Peer, e.Failed))
			continue
		}
		cells, shown = append(cells, e.Peer), append(shown, e)
	}
	p.head(cells...)
	for i, f := range fs {
		cells := []string{f.name}
		for _, e := range shown {
			v := f.of(e.Found)
			text := fmt.Sprintf(f.form, v)
			if f.spread != nil && v != 0 {
				text += fmt.Sprintf(" (±%.2f)", f.spread(e.Found)/2)
			}
			if f.most != nil && f.most(e.Found) != 0 {
				text += fmt.Sprintf("–"+f.form, f.most(e.Found))
			}
			switch {
			case v == 0 || math.IsInf(v, 0):
				text = ""
			case v == best[i] && !f.unranked:
				text = "**" + text + "**"
			}
			cells = append(cells, text)
		}
		p.row(cells...)
	}
	p.line("\n%s Memory is that of a fresh process with 50 sessions, then with 200 waiting calls, and includes garbage that a collector has not yet taken: with 8,000 sessions taskgate needs about 11 KiB for each ([performance](performance.md)), and the others were not tried with so many. taskgate reads each message that passes, which proxies of bytes do not: hence its CPU for 1 MiB. supergateway starts a process of the server for each session; that is not counted. Sizes of npm packages are without Node.\n", strings.Join(notes, " "))
}

// protocol writes what the official suite found.
func (p *page) protocol() {
	all := rowOf[[]scenarios](p, "protocol")
	p.line("## The official conformance suite\n")
	if len(all) == 0 {
		p.line("Not measured through peers yet (`make compare ROWS=protocol`); taskgate's own results are in [compatibility](compatibility.md#the-official-conformance-suite).\n")
		return
	}
	p.line("Scenarios with a success, and without a failure or a warning, of those that the suite runs; one that only skips is not counted as passed. taskgate has its defaults, not the settings that [compatibility](compatibility.md#the-official-conformance-suite) names for the suite. The server is this repository's (`internal/e2e/conformserver`), and the line \"directly\" is what it")
	p.line("passes by itself: it has no tasks, for one. Scenarios with time limits can fail on a machine that is busy. The suite calls tools by name, so a peer that puts a prefix before their names, as vMCP does with the settings of its")
	p.line("example, fails what calls them. %s\n", agreement(all, func(a, b scenarios) bool { return a == b }))
	cells := []string{"through"}
	for _, s := range suites {
		cells = append(cells, s.name)
	}
	p.head(cells...)
	var notes []string
	ours := map[string]int{}
	for _, e := range all {
		for _, s := range e.Found {
			if e.Peer == "taskgate" {
				ours[s.Suite] = s.Passed
			}
		}
	}
	for _, e := range all {
		if e.Failed != "" {
			notes = append(notes, fmt.Sprintf("%s: %s.", e.Peer, e.Failed))
			continue
		}
		cells := []string{e.Peer}
		for i, s := range e.Found {
			text := fmt.Sprintf("%d of %d", s.Passed, s.All)
			if e.Again != nil && (*e.Again)[i] != s {
				text = fmt.Sprintf("%d, then %d of %d", s.Passed, (*e.Again)[i].Passed, s.All)
			}
			if s.Passed > ours[s.Suite] && e.Peer != "directly" {
				text = "**" + text + "**"
			}
			cells = append(cells, text)
		}
		p.row(cells...)
	}
	p.line("\n%s\n", strings.Join(notes, " "))
}

// tasks writes what tasks have.
func (p *page) tasks() {
	all := rowOf[[]passage](p, "tasks")
	if len(all) == 0 {
		return
	}
	p.line("## Tasks\n")
	p.line("The server knows nothing of tasks. What a client gets that asks for one in the dialect of 2025-11-25, and one that takes them as the extension of 2026-07-28 has them. taskgate's two replicas")
	p.line("share a Redis. The peers promise no tasks in front of such a server: a server that has its own is better served by what passes its bytes on. Lists are of 2025-11-25 alone. Partial results are")
	p.line("[drafts](design/partial-results.md) that no peer names, and were not tried. Of the peers' documents, [vMCP's](https://github.com/stacklok/toolhive/blob/v0.47.0/docs/arch/10-virtual-mcp-architecture.md#L461-L469)")
	p.line("alone name tasks, as the way to go for questions to clients of 2026. %s\n", agreement(all, samePassage))
	cells := []string{"through"}
	for _, f := range all[0].Found {
		cells = append(cells, strings.TrimSuffix(f.Feature, " (2025 alone)"))
	}
	p.head(cells...)
	var notes []string
	for _, e := range all {
		if e.Failed != "" {
			notes = append(notes, fmt.Sprintf("%s: %s.", e.Peer, e.Failed))
			continue
		}
		cells := []string{e.Peer}
		for i, f := range e.Found {
			old, recent := verdict(f.Legacy), verdict(f.Modern)
			if strings.Contains(f.Feature, "2025 alone") {
				recent = "–"
			}
			cell := old + " / " + recent
			if e.Again != nil && !samePassage(f, (*e.Again)[i]) {
				cell += ", then " + verdict((*e.Again)[i].Legacy) + " / " + verdict((*e.Again)[i].Modern)
			}
			cells = append(cells, cell)
		}
		p.row(cells...)
	}
	p.line("\nA cell has the dialect of 2025-11-25 and the extension, in this order. %s\n", strings.Join(notes, " "))
}

// measured writes when and where each row was measured, and by which command.
func (p *page) measured() {
	p.line("## When and where\n")
	p.head("row", "command", "dates", "machine", "load (1, 5, 15 min), least and most", "commits")
	add := func(name, command string, all []conditions) {
		if len(all) == 0 {
			return
		}
		var dates, commits []string
		loads := [2]string{all[0].Load, all[0].Load}
		for _, c := range all {
			dates = append(dates, c.Date.Format("2006-01-02"))
			commits = append(commits, "`"+c.Commit+"`")
			if first(c.Load) < first(loads[0]) {
				loads[0] = c.Load
			}
			if first(c.Load) > first(loads[1]) {
				loads[1] = c.Load
			}
		}
		slices.Sort(dates)
		slices.Sort(commits)
		p.row(name, "`make compare "+command+"`", strings.Join(slices.Compact(dates), ", "), fmt.Sprintf("%s, %d cores", all[0].Machine, all[0].Cores),
			loads[0]+"; "+loads[1], strings.Join(slices.Compact(commits), ", "))
	}
	add("silence, 90 s", "ROWS=silence", conditionsOf[[]silence](p, "silence-90s"))
	add("silence, 10 min", "ROWS=silence SILENCE=600", conditionsOf[[]silence](p, "silence-600s"))
	add("what survives", "ROWS=survive", conditionsOf[[]survival](p, "survive"))
	add("the same, streams kept", "ROWS=resumable", conditionsOf[[]survival](p, "survive-resumable"))
	add("what gets through", "ROWS=through", conditionsOf[[]passage](p, "through"))
	add("cost", "ROWS=cost", conditionsOf[cost](p, "cost"))
	add("conformance", "ROWS=protocol", conditionsOf[[]scenarios](p, "protocol"))
	add("tasks", "ROWS=tasks", conditionsOf[[]passage](p, "tasks"))
	p.line("\n`make compare` installs the peers into `.cache/compare`, measures `ROWS`, and writes this page. `PEERS=\"nginx,taskgate\"` measures some alone. It needs `make agents`' packages (silence),")
	p.line("`redis-server`, nginx, haproxy, Node 20 and npm. The settings of %d peers, and every text that a client got, are in the repository: a correction is welcome.", len(peers.All())-3)
}

func first(load string) float64 {
	var n float64
	_, _ = fmt.Sscan(load, &n)
	return n
}

func conditionsOf[T any](p *page, name string) (all []conditions) {
	for _, e := range rowOf[T](p, name) {
		all = append(all, e.conditions)
	}
	return all
}
