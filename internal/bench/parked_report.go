package main

import (
	"bytes"
	"fmt"
	"io"
)

// reportParked writes the tables of the second part.
func reportParked(out io.Writer, found map[string][]level, s settings) error {
	var b bytes.Buffer
	for _, era := range []string{"legacy", "modern"} {
		fmt.Fprintf(&b, "\n### Parked tasks, %s server\n\n| parked | resident | after the load | CPU, idle | commands/s, idle |", era)
		for _, cell := range []string{parkedCreate, parkedPoll, parkedCancel} {
			fmt.Fprintf(&b, " %s/s | p99 |", cell)
		}
		b.WriteString("\n|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n")
		for _, l := range found[era] {
			var commands int64
			for _, n := range l.idle.commands {
				commands += n
			}
			fmt.Fprintf(&b, "| %d | %d MB | %d MB | %.1f %% | %.1f |", l.parked, l.idle.resident>>20, l.busy>>20,
				100*l.idle.cpu.Seconds()/l.length.Seconds(), float64(commands)/l.length.Seconds())
			for _, cell := range []string{parkedCreate, parkedPoll, parkedCancel} {
				m := l.rates[cell]
				fmt.Fprintf(&b, " %.0f | %s |", m.rate, short(m.p99))
			}
			b.WriteString("\n")
		}
		for _, l := range found[era] {
			fmt.Fprintf(&b, "\n%d parked, %s idle: %s\n", l.parked, l.length, l.idle.list())
		}
	}
	fmt.Fprintf(&b, "\n%d connections; medians of %d rounds of %s.\n", parkedConns, s.rounds, s.length)
	_, err := out.Write(b.Bytes())
	return err
}
