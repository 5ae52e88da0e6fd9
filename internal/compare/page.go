package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"taskgate/internal/compare/peers"
)

// page is the text that is being written, and the first error of reading a result.
type page struct {
	strings.Builder
	o   *options
	err error
}

func (p *page) line(format string, args ...any) { fmt.Fprintf(p, format+"\n", args...) }

// row writes a line of a table.
func (p *page) row(cells ...string) { p.line("| %s |", strings.Join(cells, " | ")) }

// head writes the head of a table whose first column is a name.
func (p *page) head(cells ...string) {
	p.row(cells...)
	p.line("|%s", strings.Repeat("---|", len(cells)))
}

// rowOf reads a row's results.
func rowOf[T any](p *page, name string) []entry[T] {
	all, err := load[T](p.o, name)
	if err != nil && p.err == nil {
		p.err = err
	}
	return all
}

// writePage writes docs/comparison.md and its pictures, from the results alone.
func writePage(o *options) error {
	p := &page{o: o}
	p.line("%s", introduction)
	p.silence()
	p.survival()
	p.passages()
	p.costs()
	p.protocol()
	p.tasks()
	p.read()
	p.settings()
	p.measured()
	if p.err != nil {
		return p.err
	}
	return os.WriteFile(filepath.Join(o.docs, "comparison.md"), []byte(p.String()), 0o644)
}

const introduction = `# Comparison

This page compares taskgate with what people would use in its place. ` + "`make compare`" + ` has measured all of it but the section
[Read](#read-not-measured), and has written this page from
[the results](../internal/compare/results). The peers are installed by their usual installers, in pinned versions, with the
[settings](#settings) that their own documents recommend for tools that take long. taskgate has its defaults.

Where a peer does what taskgate does not, or does it better, its cell is **bold**. Where a cell is empty, or a row says "not measured", the reason is
beside it.

The peers do different things. nginx, haproxy and the bare proxy carry bytes. TBXark's mcp-proxy, vMCP and mcp-hub gather several servers
behind one address. supergateway and mcp-proxy (npm) give servers over stdio an address. mcp-remote gives clients over stdio a server elsewhere.
None of these promises that a slow call survives: this page says what happens to one all the same.
`

// silence writes the first rows.
func (p *page) silence() {
	p.line("## A silent tool\n")
	p.line("A tool works and says nothing, for 90 s and for 10 min. Coding agents call it with default settings, and their model is shown this. Each call")
	p.line("reached the server once, unless the cell says otherwise.\n")
	for _, seconds := range []int{90, 600} {
		name := fmt.Sprintf("silence-%ds", seconds)
		all := rowOf[[]silence](p, name)
		if len(all) == 0 {
			continue
		}
		agents := []string{"terminal", "claude", "codex", "gemini", "opencode", "qwen"}
		g := grid{title: fmt.Sprintf("A tool that is silent for %d s: what each agent is shown", seconds)}
		cells := []string{fmt.Sprintf("%d s, through", seconds)}
		for _, a := range agents {
			for _, s := range all[0].Found {
				if s.Agent == a {
					cells = append(cells, s.Title+" "+s.Version)
					g.columns = append(g.columns, strings.NewReplacer("`", "", ", terminal", " tty").Replace(s.Title))
				}
			}
		}
		p.head(cells...)
		var notes []string
		for _, e := range all {
			if e.Failed != "" {
				notes = append(notes, fmt.Sprintf("%s: %s.", e.Peer, strings.TrimSuffix(e.Failed, ".")))
				continue
			}
			cells, marks := []string{e.Peer}, []mark{}
			for _, a := range agents {
				text, m := cellOf(e, all[0], a)
				cells, marks = append(cells, text), append(marks, m)
			}
			p.row(cells...)
			g.rows = append(g.rows, gridRow{e.Peer, marks})
		}
		p.line("\n%s\n", strings.Join(append(notes, `"Not run" is a failure of the test's own set-up: there the agent's model was never shown the tools, on a machine that was busy.`), " "))
		p.picture("comparison-"+name, g)
	}
	p.line("What the agents say, and how taskgate answers each of them before it gives up, is in [clients](clients.md).\n")
}

// cellOf is what one agent was shown through one peer.
func cellOf(e, direct entry[[]silence], agent string) (string, mark) {
	alone := false
	for _, s := range direct.Found {
		alone = alone || s.Agent == agent && s.Worked
	}
	for _, s := range e.Found {
		if s.Agent != agent {
			continue
		}
		text, m := fmt.Sprintf("error after %.0f s", s.Seconds), mark{text: fmt.Sprintf("%.0f s", s.Seconds), kind: bad}
		switch {
		case s.Worked:
			if text, m = "result", (mark{"result", good}); !alone && e.Peer != "taskgate" {
				text = "**result**"
			}
		case s.Calls == 0:
			return "not run", mark{"", none}
		}
		if s.Calls > 1 {
			text += fmt.Sprintf(", %d calls", s.Calls)
		}
		return text, m
	}
	return "", mark{"", none}
}

// survival writes the second rows.
func (p *page) survival() {
	p.line("## What survives\n")
	p.line("200 calls of a tool that takes 60 s are under way for 34 s when something breaks. Most clients are the Go SDK's, of 2025-11-25, and know nothing of")
	p.line("tasks; with taskgate a client of 2026-07-28 that takes tasks is in a line of its own. A cell has the results that were delivered, the errors with the seconds until the")
	plain, resumable := rowOf[[]survival](p, "survive"), rowOf[[]survival](p, "survive-resumable")
	twice := 0
	for _, e := range slices.Concat(plain, resumable) {
		for _, s := range e.Found {
			twice += s.RunTwice
		}
	}
	p.line("last client had its own, and the calls that were still silent 90 s after the work was to end. The calls that any peer had run twice: %d.\n", twice)
	p.survivalOf("The server keeps no streams, as SDKs make servers by default", "comparison-survive", plain)
	p.line("The second table is the same with a server that keeps what its streams say (an event store of the SDK), so that a client or a gateway whose connection broke")
	p.line("reads on. supergateway and mcp-proxy (npm) start their servers over stdio, where there is no such thing.\n")
	p.survivalOf("The server keeps its streams", "comparison-survive-resumable", resumable)
	p.line("Errors of taskgate after a kill say that the server may have finished the work: a call is not sent again unless its owner allows that (`recover: retry` in [configuration](configuration.md)).")
	p.line("mcp-proxy (npm) keeps the streams towards its clients, so it too delivers after a cut. Two replicas stand behind a balancer that keeps each session where it began, and that tries the other")
	p.line("replica where one refuses the connection or answers 503; those of taskgate share a Redis that syncs each write. Neither nginx nor haproxy was reloaded in place, as their operators do it:")
	p.line("they were stopped as any other. A peer that keeps no call and no state has less to lose: in front of a server that keeps its streams, a proxy of bytes that is killed and started again is no more\nthan a cut connection, and the client reads on.\n")
}

func (p *page) survivalOf(title, name string, all []entry[[]survival]) {
	if len(all) == 0 {
		return
	}
	g := grid{title: title + ": results of 200 calls", columns: []string{"gateway killed", "server killed", "cut", "rolling restart", "Redis killed"}}
	p.head(title, "gateway killed, started again", "server killed, started again", "connections cut", "two replicas restarted in turn", "Redis killed, back after 5 s")
	best := map[string]int{}
	for _, e := range all {
		for _, s := range e.Found {
			if e.Peer == "taskgate" && s.Client == plainClient {
				best[s.Fault] = s.Delivered
			}
		}
	}
	var notes []string
	for _, e := range all {
		if e.Failed != "" {
			notes = append(notes, fmt.Sprintf("%s: %s.", e.Peer, e.Failed))
			continue
		}
		for _, kind := range []string{plainClient, tasksClient} {
			label := e.Peer
			if kind == tasksClient {
				label += ", client that takes tasks"
			}
			cells, marks, any := []string{label}, []mark{}, false
			for _, f := range faults {
				text, m := "", mark{"", none}
				for _, s := range e.Found {
					if s.Fault == f.name && s.Client == kind {
						any = true
						text, m = s.cell(best[f.name], e.Peer)
					}
				}
				cells, marks = append(cells, text), append(marks, m)
			}
			if any {
				p.row(cells...)
				g.rows = append(g.rows, gridRow{strings.Replace(label, "client that takes", "with", 1), marks})
			}
		}
	}
	p.line("\n%s\n", strings.Join(notes, " "))
	p.picture(name, g)
}

// cell is what became of the calls of one peer under one fault.
func (s survival) cell(best int, peer string) (string, mark) {
	if s.Note != "" {
		return "– (" + s.Note + ")", mark{"", none}
	}
	var parts []string
	if s.Delivered > 0 {
		text := fmt.Sprintf("%d results", s.Delivered)
		if s.Delivered > best && peer != "taskgate" {
			text = "**" + text + "**"
		}
		parts = append(parts, text)
	}
	if s.Failed > 0 {
		parts = append(parts, fmt.Sprintf("%d errors within %.1f s", s.Failed, max(s.LastTold, 0.1)))
	}
	if s.Silent > 0 {
		parts = append(parts, fmt.Sprintf("%d silent", s.Silent))
	}
	if s.RunTwice > 0 {
		parts = append(parts, fmt.Sprintf("%d run twice", s.RunTwice))
	}
	kind := bad
	if s.Delivered*2 > s.Calls {
		kind = good
	}
	return strings.Join(parts, ", "), mark{fmt.Sprint(s.Delivered), kind}
}

// passages writes what gets through.
func (p *page) passages() {
	p.line("## What gets through\n")
	p.line("The server speaks 2025-11-25 with sessions; the client is the Go SDK's with everything that a server may ask of it. 64-bit integers are tried with 9007199254740993, which is the first that no")
	p.line("floating-point number holds; whatever is written in JavaScript reads numbers as those. The machine was busy when the two minutes for 20 MiB ran, so that a \"no\" there says little. The peers that were tried once were tried in an earlier run, on a quieter machine, whose messages had no pauses.")
	all := rowOf[[]passage](p, "through")
	p.line("%s", agreement(all, samePassage))
	p.line("A \"no\" leads to where the peer says so itself, or shows it in its source; one without a link was found in none of its documents.\n")
	p.line("With a client of 2025-11-25:\n")
	p.passageTable(all, false)
	p.line("With a client that wants 2026-07-28 from that server; the others answer it in an older version, as the server itself does, and the SDK goes on in that.")
	p.line("supergateway starts the server over stdio, where the Go SDK's speaks 2026-07-28 as well: its tools cannot ask in that, and so what supergateway makes of a server of 2025 is not to be seen here.\n")
	p.passageTable(slices.DeleteFunc(slices.Clone(all), func(e entry[[]passage]) bool {
		return len(e.Found) == 0 || strings.Contains(e.Found[0].Modern, errOtherVersion.Error())
	}), true)
}

// samePassage reports whether two runs found the same; the words of a failure may differ.
func samePassage(a, b passage) bool {
	return verdict(a.Legacy) == verdict(b.Legacy) && verdict(a.Modern) == verdict(b.Modern)
}

// verdict is what was found, without its reason.
func verdict(found string) string {
	word, _, _ := strings.Cut(found, ": ")
	return word
}

// agreement tells how far the second runs of a row found the same as the first, and who had none.
func agreement[T any](all []entry[[]T], same func(a, b T) bool) string {
	cells, equal := 0, 0
	var alone []string
	for _, e := range all {
		if e.Again == nil || len(*e.Again) != len(e.Found) {
			if e.Failed == "" {
				alone = append(alone, e.Peer)
			}
			continue
		}
		for i, first := range e.Found {
			if cells++; same(first, (*e.Again)[i]) {
				equal++
			}
		}
	}
	if cells == 0 {
		return "All was tried once."
	}
	text := fmt.Sprintf("All was tried twice: %d of %d findings were the same, and a cell with others has both.", equal, cells)
	if alone != nil {
		text += " Tried once: " + strings.Join(alone, ", ") + "."
	}
	return text
}

// passageTable has a line for each feature, and a column for each peer.
func (p *page) passageTable(all []entry[[]passage], recent bool) {
	of := func(f passage) string {
		if recent {
			return f.Modern
		}
		return f.Legacy
	}
	cells := []string{"through"}
	var ours []passage
	all = slices.DeleteFunc(slices.Clone(all), func(e entry[[]passage]) bool { return len(e.Found) == 0 })
	for _, e := range all {
		cells = append(cells, e.Peer)
		if e.Peer == "taskgate" {
			ours = e.Found
		}
	}
	if len(all) == 0 || ours == nil {
		return
	}
	p.head(cells...)
	var reasons []string
	for i, f := range all[0].Found {
		cells := []string{f.Feature}
		for _, e := range all {
			word, reason, _ := strings.Cut(of(e.Found[i]), ": ")
			if reason != "" && e.Peer != "directly" {
				reasons = append(reasons, fmt.Sprintf("- %s, %s: %s", e.Peer, f.Feature, strings.ReplaceAll(reason, "|", "/")))
			}
			if word == "yes" && of(ours[i]) != "yes" && e.Peer != "directly" {
				word = "**yes**"
			}
			if url := peerNamed(e.Peer).WordsOn(f.Feature, recent); url != "" && word != "yes" {
				word = fmt.Sprintf("[%s](%s)", word, url)
			}
			if e.Again != nil && verdict(of((*e.Again)[i])) != verdict(of(e.Found[i])) {
				word += ", then " + verdict(of((*e.Again)[i]))
			}
			cells = append(cells, word)
		}
		p.row(cells...)
	}
	p.line("\n<details><summary>What was missing, in the words that the client got</summary>\n\n%s\n\n</details>\n", strings.Join(reasons, "\n"))
}

// peerNamed is the peer of an entry.
func peerNamed(name string) peers.Peer {
	for _, q := range peers.All() {
		if q.Name == name {
			return q
		}
	}
	return peers.Peer{}
}

// note is what was read of something that was not measured.
type note struct {
	Name, Does, Slow, Tasks, Why string
	Sources                      []string
	Read                         string
}

// read writes what was not measured.
func (p *page) read() {
	text, err := os.ReadFile(filepath.Join(p.o.results, "read.json"))
	if err != nil {
		p.err = err
		return
	}
	var notes []note
	if err := json.Unmarshal(text, &notes); err != nil {
		p.err = err
		return
	}
	p.line("## Read, not measured\n")
	p.line("These could not be run here. What they say of themselves was read, and nothing of it is mixed with what was measured.\n")
	p.head("what", "what it is", "slow calls", "tasks", "why it was not measured", "read")
	for _, n := range notes {
		var links []string
		for i, s := range n.Sources {
			links = append(links, fmt.Sprintf("[%d](%s)", i+1, s))
		}
		p.row(n.Name, n.Does, n.Slow, n.Tasks, n.Why, n.Read+": "+strings.Join(links, ", "))
	}
	p.line("")
}

// versionOf is the version that was measured.
func (p *page) versionOf(q peers.Peer) string {
	for _, e := range rowOf[[]passage](p, "through") {
		if e.Peer == q.Name {
			return e.Version
		}
	}
	return q.Version
}

// settings writes how each peer was installed and set.
func (p *page) settings() {
	p.line("## Settings\n")
	p.head("peer", "version", "way", "installed by", "settings", "its documents")
	for _, q := range peers.All() {
		by := ""
		switch {
		case q.NPM != "":
			by = "`npm install " + q.NPM + "`"
		case q.Go != "":
			module, version, _ := strings.Cut(q.Module, " ")
			by = "`go build " + q.Go + "` in a module that requires " + strings.TrimPrefix(module, "github.com/") + " " + version
		case q.Debian != "":
			by = "`apt-get install " + q.Debian + "`"
		}
		var links []string
		for i, s := range q.Docs {
			links = append(links, fmt.Sprintf("[%d](%s)", i+1, s))
		}
		p.row(q.Name, p.versionOf(q), string(q.Way), by, q.Settings, strings.Join(links, ", "))
	}
	p.line("")
}
