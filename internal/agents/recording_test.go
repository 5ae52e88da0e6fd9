package agents

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"taskgate/internal/proc"
	"taskgate/internal/programtest"
)

// recordedSeconds is how long the tool of the recording takes.
const recordedSeconds = 150

// recording is a terminal: what a program wrote to it, and when.
type recording struct {
	Title  string
	Begin  float64 // when the tool was called, in seconds
	End    float64 // when the model had its result
	Chunks []chunk

	mu    sync.Mutex
	start time.Time
}

type chunk struct {
	At   float64
	Data []byte
}

// Write implements io.Writer.
func (r *recording) Write(b []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.Chunks = append(r.Chunks, chunk{At: r.now(), Data: append([]byte(nil), b...)})
	return len(b), nil
}

func (r *recording) now() float64 { return time.Since(r.start).Seconds() }

// TestRecording records Claude Code calling a silent tool, without the gateway and with it,
// and draws both. "make recording" runs it.
func TestRecording(t *testing.T) {
	if *record == "" {
		return
	}
	version := "Claude Code " + agents[0].version(t)
	panels := []*recording{
		{Title: version + " calls a tool that takes 150 s, directly"},
		{Title: "the same through taskgate, with its default settings"},
	}
	var all sync.WaitGroup
	for i, r := range panels {
		all.Go(func() { r.run(t, i == 0) })
	}
	all.Wait()
	// From standard input a script finds its packages where it runs.
	script, err := os.Open(filepath.Join("testdata", "draw.mjs"))
	if err != nil {
		t.Fatal(err)
	}
	defer script.Close()
	data, picture := filepath.Join(t.TempDir(), "panels.json"), &bytes.Buffer{}
	if err := os.WriteFile(data, []byte(encode(panels)), 0o600); err != nil {
		t.Fatal(err)
	}
	p, err := proc.Start(proc.Command{
		Name: "draw.mjs", Path: node(t), Args: []string{"--input-type=module", "-"}, Stdin: script, Stdout: picture,
		Dir: filepath.Join(programtest.NodeDir(t), "small-agents"),
		Env: []string{"PANELS=" + data, fmt.Sprintf("ROWS=%d", screenRows), fmt.Sprintf("COLUMNS=%d", screenColumns)},
	})
	if err != nil {
		t.Fatal(err)
	}
	if p.ExitCode() != 0 {
		t.Fatal(p.Output())
	}
	if err := os.WriteFile(*record, picture.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
}

// run records Claude Code until its model has what the tool says.
func (r *recording) run(t *testing.T, direct bool) {
	a := agents[0]
	a.screen, a.env, r.start = r, append(slices.Clone(a.env), "FORCE_COLOR=3"), time.Now()
	w := newWorld(t, row{direct: direct})
	w.run(t, a, []Call{working(recordedSeconds)}, func(*testing.T, *world) { r.Begin = r.now() }, 2*patience)
	r.End = r.now()
	w.pause(3 * time.Second) // the terminal shows what the model says
}
