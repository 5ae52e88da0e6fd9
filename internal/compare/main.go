package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"taskgate/internal/compare/peers"
)

// options are the flags of all commands.
type options struct {
	root      string // the repository
	installed string // where peers are installed
	results   string // the folder of the results
	docs      string // where the page is written
	only      []string
	together  int // how many peers are measured at a time, where that does not change what is found
	seconds   float64
	rounds    int
	built     bool   // what this repository has is built
	fault     string // a part of the names of the faults to measure again
	quick     bool
	load      string // of the machine, where it is told for the begin of a measurement
}

// rows are what can be measured, most important first.
var rows = map[string]func(context.Context, *options) error{
	"silence": runSilence, "survive": runSurvive, "resumable": runResumable, "through": runThrough, "cost": runCost, "protocol": runProtocol, "tasks": runTasks,
}

func main() {
	log.SetFlags(log.Ltime)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return fmt.Errorf("what: install, run or page")
	}
	o := &options{}
	flags := flag.NewFlagSet(args[0], flag.ContinueOnError)
	flags.StringVar(&o.root, "root", filepath.Join("..", ".."), "the repository")
	flags.StringVar(&o.installed, "installed", "", "where peers are installed (ROOT/.cache/compare)")
	flags.StringVar(&o.results, "results", "results", "where results are")
	flags.IntVar(&o.together, "together", 3, "how many peers are measured at a time, but for the costs")
	flags.Float64Var(&o.seconds, "seconds", 90, "how long the tool is silent, in the row silence")
	flags.IntVar(&o.rounds, "rounds", 3, "how many rounds the costs have")
	flags.BoolVar(&o.quick, "quick", false, "few calls that are short: to see that the comparison itself works")
	flags.BoolVar(&o.built, "built", false, "do not build again what this repository has")
	flags.StringVar(&o.fault, "fault", "", "a part of the name of the fault that is measured again, in the rows survive and resumable")
	only := flags.String("peers", "", "the peers, by name, with commas between them (all)")
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	if *only != "" {
		o.only = strings.Split(*only, ",")
	}
	var err error
	if o.root, err = filepath.Abs(o.root); err != nil {
		return err
	}
	o.docs = filepath.Join(o.root, "docs")
	if o.installed == "" {
		o.installed = filepath.Join(o.root, ".cache", "compare")
	}
	if o.installed, err = filepath.Abs(o.installed); err != nil {
		return err
	}
	switch args[0] {
	case "install":
		return install(ctx, o)
	case "page":
		return writePage(o)
	case "run":
		return measure(ctx, o, flags.Args())
	default:
		return fmt.Errorf("%q is no command: install, run or page", args[0])
	}
}

// measure builds what this repository has, and measures the rows one after the other.
func measure(ctx context.Context, o *options, names []string) error {
	if err := build(ctx, o); err != nil {
		return err
	}
	for _, name := range names {
		row, ok := rows[name]
		if !ok {
			return fmt.Errorf("%q is no row", name)
		}
		log.Printf("%s", name)
		if err := row(ctx, o); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// chosen are the peers to measure.
func (o *options) chosen() []peers.Peer {
	return slices.DeleteFunc(peers.All(), func(p peers.Peer) bool { return o.only != nil && !slices.Contains(o.only, p.Name) })
}
