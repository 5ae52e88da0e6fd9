package main

import (
	"fmt"
	"html"
	"os"
	"path/filepath"
	"strings"
)

// mark is a cell of a picture.
type mark struct {
	text string
	kind int
}

// The kinds of marks.
const (
	none = iota
	good
	bad
)

type gridRow struct {
	name  string
	marks []mark
}

// grid is a picture of a table: a name and coloured cells on each line.
type grid struct {
	title   string
	columns []string
	rows    []gridRow
}

// colours are those of a picture: of the paper, of text, and of the kinds of marks.
type colours struct {
	paper, text string
	kinds       [3]string
}

var schemes = map[string]colours{
	"light": {"#ffffff", "#1f2328", [3]string{"#eaeef2", "#7ddc9a", "#ffb3ad"}},
	"dark":  {"#0d1117", "#e6edf3", [3]string{"#21262d", "#1f7a3d", "#8e2a26"}},
}

// draw draws the grid as SVG.
func (g grid) draw(c colours) string {
	const left, width, height, top = 230, 118, 26, 64
	w, h := left+width*len(g.columns)+10, top+height*len(g.rows)+10
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" font-family="system-ui, sans-serif" font-size="13" role="img" aria-label="%s">`,
		w, h, w, h, html.EscapeString(g.title))
	fmt.Fprintf(&b, "\n<rect width=\"100%%\" height=\"100%%\" fill=\"%s\"/>\n", c.paper)
	text := func(x, y int, anchor, weight, s string) {
		fmt.Fprintf(&b, `<text x="%d" y="%d" text-anchor="%s" font-weight="%s" fill="%s">%s</text>`+"\n", x, y, anchor, weight, c.text, html.EscapeString(s))
	}
	text(10, 22, "start", "bold", g.title)
	for i, column := range g.columns {
		text(left+width*i+width/2, top-10, "middle", "normal", column)
	}
	for n, row := range g.rows {
		y, weight := top+height*n, "normal"
		if strings.HasPrefix(row.name, "taskgate") {
			weight = "bold"
		}
		text(left-10, y+17, "end", weight, row.name)
		for i, m := range row.marks {
			fmt.Fprintf(&b, `<rect x="%d" y="%d" width="%d" height="%d" rx="4" fill="%s"/>`+"\n", left+width*i+2, y+2, width-4, height-4, c.kinds[m.kind])
			text(left+width*i+width/2, y+18, "middle", weight, m.text)
		}
	}
	b.WriteString("</svg>\n")
	return b.String()
}

// picture writes a grid for light and for dark pages, and shows it.
func (p *page) picture(name string, g grid) {
	for scheme, c := range schemes {
		file := filepath.Join(p.o.docs, name+"-"+scheme+".svg")
		if err := os.WriteFile(file, []byte(g.draw(c)), 0o644); err != nil && p.err == nil {
			p.err = err
		}
	}
	p.line("<picture>\n  <source media=\"(prefers-color-scheme: dark)\" srcset=\"%s-dark.svg\">\n  <img alt=\"%s\" src=\"%s-light.svg\">\n</picture>\n", name, html.EscapeString(g.title), name)
}
