package agents

import (
	"encoding/json"
	"flag"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

var (
	beside        = flag.String("beside", "", "run the agents with what serves at this URL, or with this program over stdio (its words in a JSON array)")
	besideSeconds = flag.Float64("beside-seconds", 90, "how long the tool is silent, with -beside")
	besideReport  = flag.String("beside-report", "", "the file that gets what the agents were shown, with -beside")
)

// besideResult is what one agent was shown of a call, for "make compare".
type besideResult struct {
	Agent, Title, Version string
	Shown                 string  // the text of the result, or why there is none
	Worked                bool    // it is that of the tool
	Seconds               float64 // from the call to what was shown
}

// TestBeside runs the agents with any server, and writes what each is shown of a silent tool: "make compare" gives it the
// programs that taskgate is compared with. It holds nothing: what is measured is up to them.
func TestBeside(t *testing.T) {
	if *beside == "" {
		t.Skip("make compare runs it")
	}
	results := make(chan besideResult, len(agents))
	t.Run("agents", func(t *testing.T) {
		for _, a := range agents {
			t.Run(a.name, func(t *testing.T) {
				t.Parallel()
				r := besideResult{Agent: a.name, Title: a.title, Version: a.version(t), Shown: "the model was never asked"}
				defer func() { results <- r }()
				runBeside(t, a, &r)
			})
		}
	})
	close(results)
	var all []besideResult
	for r := range results {
		all = append(all, r)
	}
	text, err := json.Marshal(all)
	if err == nil {
		err = os.WriteFile(*besideReport, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// runBeside runs one agent.
func runBeside(t *testing.T, a agent, r *besideResult) {
	w := &world{trials: &trials{}, wire: newWire("")}
	if u, err := url.Parse(*beside); err == nil && u.Scheme == "http" {
		w.wire.sendTo(u.Host)
		w.path = u.Path
	} else if err := json.Unmarshal([]byte(*beside), &w.program); err != nil {
		t.Fatalf("-beside is no URL and no array of words: %v", err)
	}
	call := Call{"try_work", object{"seconds": *besideSeconds, "id": a.name}}
	limit := time.Duration(*besideSeconds*float64(time.Second)) + 3*time.Minute
	results := w.run(t, a, []Call{call}, nil, limit)
	turns := w.model.Turns()
	r.Seconds = turns[len(turns)-1].At.Sub(turns[0].At).Seconds()
	switch {
	case len(results) > 0:
		r.Shown, r.Worked = short(results[0].Text), strings.Contains(results[0].Text, worked)
	default:
		r.Shown, r.Seconds = fmt.Sprintf("nothing within %s", limit), limit.Seconds()
	}
}

// startsAlone has what taskgate connect wrote into a home start the program itself, without taskgate around it.
func startsAlone(home string) error {
	script := filepath.Join(home, "alone")
	fill := func(text string) string { return strings.ReplaceAll(text, filepath.Join(bin, "taskgate"), script) }
	if err := copyHome(home, home, fill); err != nil {
		return err
	}
	return os.WriteFile(script, []byte("#!/bin/sh\nshift 2\nexec \"$@\"\n"), 0o700)
}
