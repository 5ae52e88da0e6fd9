package otlptest

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// varying are attributes whose values differ from run to run.
var varying = map[string]bool{
	"client.address": true, "client.port": true, "server.address": true, "server.port": true,
	"jsonrpc.request.id": true, "mcp.session.id": true, "taskgate.task.id": true, "taskgate.replica": true, "taskgate.task.from": true,
}

// Tree draws all traces, as they are for any ids and times: each span on a line, below its
// parent, with its kind, its replica (A, B, ... in the order in which they appear), what it
// is linked to, and those of these attributes that it has. With no attributes named, it
// has all but those that differ from run to run.
func Tree(spans []Span, attributes ...string) string {
	spans = slices.Clone(spans)
	slices.SortStableFunc(spans, func(a, b Span) int {
		return cmp.Or(a.Start.Compare(b.Start), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Kind, b.Kind))
	})
	d := drawing{below: map[string][]Span{}, byID: map[string]Span{}, replicas: map[string]string{}, attributes: attributes}
	for _, s := range spans {
		d.byID[s.ID] = s
	}
	var roots []Span
	for _, s := range spans {
		if _, known := d.byID[s.Parent]; known {
			d.below[s.Parent] = append(d.below[s.Parent], s)
		} else {
			roots = append(roots, s)
		}
	}
	for _, s := range roots {
		d.draw(s, "")
	}
	return d.out.String()
}

type drawing struct {
	out        strings.Builder
	below      map[string][]Span
	byID       map[string]Span
	replicas   map[string]string
	attributes []string
}

func (d *drawing) draw(s Span, indent string) {
	fmt.Fprintf(&d.out, "%s%s [%s", indent, s.Name, s.Kind)
	if id := s.Resource["service.instance.id"]; id != "" {
		if d.replicas[id] == "" {
			d.replicas[id] = string(rune('A' + len(d.replicas)))
		}
		d.out.WriteString(", replica " + d.replicas[id])
	}
	if s.Failed {
		d.out.WriteString(", failed")
	}
	d.out.WriteString("]")
	if s.Parent != "" && d.byID[s.Parent].ID == "" {
		d.out.WriteString(" (below a span of the client)")
	}
	keys := d.attributes
	if len(keys) == 0 {
		keys = slices.Sorted(maps.Keys(s.Attributes))
		keys = slices.DeleteFunc(keys, func(k string) bool { return varying[k] })
	}
	for _, k := range keys {
		if v, ok := s.Attributes[k]; ok {
			fmt.Fprintf(&d.out, " %s=%s", k, v)
		}
	}
	for _, l := range s.Links {
		name := "a span of somebody else"
		if to, ok := d.byID[l.ID]; ok {
			name = to.Name
		}
		d.out.WriteString(" -> " + name)
	}
	d.out.WriteString("\n")
	for _, child := range d.below[s.ID] {
		d.draw(child, indent+"  ")
	}
}
