package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"
)

// cell is one variant at one number of connections.
type cell struct {
	name  string
	conns int
}

// results are the samples of each cell, one per round.
type results map[cell][]sample

// measure runs all rounds and writes the report.
func measure(ctx context.Context, out io.Writer, taskgate string, s settings) error {
	stage, err := newStage(ctx, taskgate)
	if err != nil {
		return err
	}
	defer stage.close()
	variants, err := stage.variants(ctx)
	if err != nil {
		return fmt.Errorf("%w\n%s", err, stage.complaints())
	}
	variants = slices.DeleteFunc(variants, func(v variant) bool { return !strings.Contains(v.name, s.only) })
	found := results{}
	for round := range s.rounds {
		fmt.Fprintf(os.Stderr, "round %d of %d\n", round+1, s.rounds)
		if err := oneRound(ctx, variants, round, s, found); err != nil {
			return fmt.Errorf("%w\n%s", err, stage.complaints())
		}
	}
	if text := stage.complaints(); text != "" {
		fmt.Fprintf(os.Stderr, "the gateway logged:\n%s\n", text)
	}
	return report(out, found, s, machine(ctx, stage))
}

// oneRound measures every cell once. Each round begins with another variant, so
// that none has the same neighbour always.
func oneRound(ctx context.Context, variants []variant, round int, s settings, found results) error {
	for _, conns := range slices.Compact(slices.Sorted(slices.Values(slices.Concat(s.conns, largeConns)))) {
		for i := range variants {
			v := variants[(i+round)%len(variants)]
			if !slices.Contains(v.at(s), conns) {
				continue
			}
			got, err := load(ctx, v, conns, s.length)
			if err != nil {
				return err
			}
			c := cell{v.name, conns}
			found[c] = append(found[c], got)
		}
	}
	return nil
}

// median is that of each number of the samples by itself.
func median(samples []sample) sample {
	return sample{
		rate: middle(samples, func(s sample) float64 { return s.rate }),
		p50:  time.Duration(middle(samples, func(s sample) float64 { return float64(s.p50) })),
		p99:  time.Duration(middle(samples, func(s sample) float64 { return float64(s.p99) })),
	}
}

func middle(samples []sample, value func(sample) float64) float64 {
	var list []float64
	for _, s := range samples {
		list = append(list, value(s))
	}
	slices.Sort(list)
	n := len(list)
	switch {
	case n == 0:
		return 0
	case n%2 == 1:
		return list[n/2]
	default:
		return (list[n/2-1] + list[n/2]) / 2
	}
}
