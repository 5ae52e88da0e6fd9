package e2e

import (
	"fmt"
	"strings"
	"testing"

	"taskgate/internal/programtest"
	"taskgate/internal/wiretest"
)

// update rewrites the table in docs/compatibility.md.
var update = wiretest.Update

// tableColumns are the columns of the table. An error is one of a tool and one of the protocol.
var tableColumns = []struct{ name, title string }{
	{"list", "list"}, {"call", "call"}, {"progress", "progress"}, {"slow", "slow call"}, {"cancel", "cancel"},
	{"question", "question"}, {"error", "error"}, {"large", "4 MiB"},
}

// tableWord is what the table says of an operation; "" if the server has no tool for it.
func tableWord(column string, all tableGots) string {
	if column == "error" {
		for _, op := range []string{"fail", "broken"} {
			if strings.HasPrefix(all[op].Text, "no connection") {
				return "no"
			}
		}
		return "yes"
	}
	got, ok := all[column]
	switch {
	case !ok:
		return ""
	case got.failed(),
		column == "progress" && got.Said == 0,
		column == "cancel" && got.Text != "seen",
		column == "question" && got.Asked == 0:
		return "no"
	case column == "slow":
		return map[string]string{"result": "result", "task": "task", "told": "text"}[got.How]
	}
	return "yes"
}

// tableEntry is a cell: how a slow call is answered through the gateway, then "+" what else the
// gateway adds, and "no" what there is not. The slow call is bold where it is answered otherwise
// directly, which stands in parentheses.
func tableEntry(direct, behind tableGots) string {
	with, alone := tableWord("slow", behind), tableWord("slow", direct)
	entry := with
	if with != alone {
		entry = fmt.Sprintf("**%s** (%s)", with, alone)
	}
	reached := tableWord("call", direct) == "yes"
	for _, column := range tableColumns {
		switch with, alone := tableWord(column.name, behind), tableWord(column.name, direct); {
		case column.name == "slow":
		case with == "no":
			entry += ", no " + column.title
		case with != alone && reached:
			entry += ", +" + column.title
		}
	}
	return entry
}

// tableText is the table of docs/compatibility.md. Transports that do not differ share a row.
func tableText(servers []tableServer, found map[string]map[string]tableGots) string {
	var b strings.Builder
	b.WriteString("| server | over |")
	for _, c := range tableClients() {
		fmt.Fprintf(&b, " %s: %s |", c.name, c.what)
	}
	b.WriteString("\n|---|---|" + strings.Repeat("---|", len(tableClients())) + "\n")
	for _, s := range servers {
		var rows []string
		over := map[string][]string{}
		for _, transport := range s.over {
			row := tableRow(s, transport, found)
			if over[row] == nil {
				rows = append(rows, row)
			}
			over[row] = append(over[row], transport)
		}
		for _, row := range rows {
			fmt.Fprintf(&b, "| %s: %s | %s |%s\n", s.kind, s.peer, strings.Join(over[row], ", "), row)
		}
	}
	return b.String()
}

// tableRow are the cells of a server over one transport.
func tableRow(s tableServer, transport string, found map[string]map[string]tableGots) (row string) {
	for _, c := range tableClients() {
		row += " " + tableEntry(found[c.peer][directly(s, transport)], found[c.peer][through(s, transport, c.handle)]) + " |"
	}
	return row
}

// tableDocuments compares the table in docs/compatibility.md with what was found, or writes it.
func tableDocuments(t *testing.T, servers []tableServer, found map[string]map[string]tableGots) {
	t.Helper()
	if t.Failed() {
		return
	}
	programtest.TableOf(t, "TestTable").Compare(t, tableText(servers, found), *update)
}
