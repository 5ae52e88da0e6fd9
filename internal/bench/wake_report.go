package main

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"
)

// reportWake writes the table of the third part. The times are sorted.
func reportWake(out io.Writer, found *woken, s settings) error {
	var b bytes.Buffer
	b.WriteString("\n### Waiting on another replica\n\n| waiting by | completions | p50 | p99 | longest |\n|---|---:|---:|---:|---:|\n")
	for _, kind := range []string{wakeResult, wakeListen} {
		times := found.times[kind]
		if len(times) == 0 {
			return fmt.Errorf("%s: nobody heard of the end of a task", kind)
		}
		fmt.Fprintf(&b, "| %s | %d | %s | %s | %s |\n", kind, len(times),
			short(times[len(times)/2]), short(times[len(times)*99/100]), short(times[len(times)-1]))
	}
	fmt.Fprintf(&b, "\n%d waiting, one completion per %s, for %s. CPU:", s.waiters, wakeEvery, found.length.Round(time.Millisecond))
	for i, name := range slices.Sorted(maps.Keys(found.cpu)) {
		if i > 0 {
			b.WriteString(",")
		}
		fmt.Fprintf(&b, " %s %.0f %%", name, 100*found.cpu[name].Seconds()/found.length.Seconds())
	}
	b.WriteString(".\n")
	_, err := out.Write(b.Bytes())
	return err
}
