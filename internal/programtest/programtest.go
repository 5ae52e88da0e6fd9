// Package programtest builds the programs that tests run from outside, finds what they need, and
// compares the tables of documents with what tests have found.
package programtest

import (
	"context"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"taskgate/internal/proc"
)

// root is the directory of the module, as the tests of a package in internal see it.
var root = filepath.Join("..", "..")

// Build runs "go build" with these arguments in the directory of the module.
func Build(args ...string) error {
	cmd := exec.Command("go", append([]string{"build"}, args...)...)
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", cmd, err, out)
	}
	return nil
}

// overwrite has a gateway overwrite the buffers that it puts back.
const overwrite = "-ldflags=-X=taskgate/internal/pool.mode=overwrite"

// Run runs tests of programs, which are built into a folder for them: builds are the arguments of "go build" for each.
// What gateways keep is in that folder, too. A buffer that a gateway puts back too early is read as no message.
func Run(m *testing.M, bin *string, builds ...[]string) int {
	dir, err := os.MkdirTemp("", "taskgate-programs")
	if err == nil {
		defer os.RemoveAll(dir)
		*bin = dir
		err = os.Setenv("XDG_STATE_HOME", filepath.Join(dir, "state"))
	}
	for _, args := range builds {
		if err == nil {
			err = Build(append([]string{overwrite, "-o", dir + string(filepath.Separator)}, args...)...)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// Until waits until a condition holds.
func Until(t testing.TB, what string, patience time.Duration, condition func() bool) {
	t.Helper()
	deadline, tick := time.NewTimer(patience), time.NewTicker(20*time.Millisecond)
	defer deadline.Stop()
	defer tick.Stop()
	for !condition() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("%s: not within %v", what, patience)
		}
	}
}

// Start runs a program until the test ends, and waits until it listens at all of the addresses. In the end it has so
// long to leave, before it is killed.
func Start(t testing.TB, c proc.Command, leaves time.Duration, addrs ...string) *proc.Process {
	t.Helper()
	p, err := proc.Start(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.Stop(leaves)
		if out := p.Output(); strings.Contains(out, "DATA RACE") || strings.Contains(out, "panic:") {
			t.Errorf("%s:\n%s", p.Name, out)
		} else if t.Failed() {
			t.Logf("output of %s:\n%s", p.Name, out)
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	for _, addr := range addrs {
		if err := p.WaitListening(ctx, addr); err != nil {
			t.Fatalf("%v\n%s", err, p.Output())
		}
	}
	return p
}

// startTimeout is how long a program may take to listen on a machine that is busy.
const startTimeout = time.Minute

// FreeAddr is an address to listen on.
func FreeAddr(t testing.TB) string {
	t.Helper()
	addr, err := proc.FreeAddr()
	if err != nil {
		t.Fatal(err)
	}
	return addr
}

// LookAtSources looks at all that the programs are made of. The go tool knows nothing of a program
// that a test builds, and would take an old result for a new one; it does notice which files a test
// looks at.
func LookAtSources(t testing.TB) {
	t.Helper()
	for _, name := range []string{"cmd", "gateway", "shim", "redisstore", "internal", "examples", "go.mod", "go.sum"} {
		err := filepath.WalkDir(filepath.Join(root, name), func(name string, _ fs.DirEntry, err error) error {
			if err == nil {
				_, err = os.Stat(name)
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	}
}

// NodeDir is where "make node" and "make agents" install packages, and Node.
func NodeDir(t testing.TB) string {
	t.Helper()
	dir := os.Getenv("TASKGATE_NODE_DIR")
	if dir == "" {
		dir = filepath.Join(root, ".cache", "node")
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// Table is a table of a document, between two comments that name the test that writes it.
type Table struct {
	file, head, text, tail string
}

// TableOf reads the table of a test in docs/compatibility.md.
func TableOf(t testing.TB, test string) Table { return TableIn(t, "compatibility.md", test) }

// TableIn reads the table of a test in a page of docs.
func TableIn(t testing.TB, page, test string) Table {
	t.Helper()
	file := filepath.Join(root, "docs", page)
	old, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	begin, end := "<!-- "+test+" writes what follows -->\n", "<!-- "+test+" wrote this -->\n"
	head, rest, ok := strings.Cut(string(old), begin)
	text, tail, there := strings.Cut(rest, end)
	if !ok || !there {
		t.Fatalf("%s has no place for the table of %s", file, test)
	}
	return Table{file: file, head: head + begin, text: text, tail: end + tail}
}

// Compare fails the test where the table is not this one, or writes it with update.
func (d Table) Compare(t testing.TB, text string, update bool) {
	t.Helper()
	switch text = "\n" + text + "\n"; {
	case text == d.text:
	case update:
		if err := os.WriteFile(d.file, []byte(d.head+text+d.tail), 0o644); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("%s is not what %s finds (-update writes it):\n%s", d.file, t.Name(), text)
	}
}

// Whole reports whether everything is run: TASKGATE_WHOLE is in the environment.
func Whole() bool { return os.Getenv("TASKGATE_WHOLE") != "" }

// RunsLong reports whether tests that take long are run: everything is, or it is CI that runs them.
func RunsLong() bool { return Whole() || os.Getenv("CI") != "" }

// Long skips a test that takes long, unless everything is run. "make test" has it in CI.
func Long(t testing.TB) {
	t.Helper()
	if !RunsLong() {
		Longest(t)
	}
}

// Longest skips a test that would hold up all others, unless everything is run. CI has those of internal/e2e in a step of their own.
func Longest(t testing.TB) {
	t.Helper()
	if !Whole() {
		t.Skip("it takes long: TASKGATE_WHOLE=1 has it run")
	}
}

// AtOnce sets how many parallel tests run at a time, unless the command line does. It parses the flags.
func AtOnce(n int) {
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if !given {
		_ = flag.Set("test.parallel", strconv.Itoa(n)) // it is a flag of every test
	}
}
