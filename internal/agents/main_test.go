package agents

import (
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

var (
	// What takes long, and the large agents, are run by "make agents".
	all    = flag.Bool("all", false, "run all rows with all agents")
	silent = flag.Bool("silent", false, "run the rows in which a tool is silent for 10 minutes, and no others")
	tries  = flag.Int("tries", 2, "how many tasks of each client meet each fault")
	record = flag.String("record", "", "record Claude Code, and draw that into this file")
	update = flag.Bool("update", false, "write the table of docs/compatibility.md")
)

// taskgate is the program under test.
var taskgate string

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(run(m))
}

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "taskgate-agents")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	taskgate = filepath.Join(dir, "taskgate")
	cmd := exec.Command("go", "build", "-o", taskgate, "./cmd/taskgate")
	cmd.Dir = filepath.Join("..", "..")
	if out, err := cmd.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n%s", cmd, err, out)
		return 1
	}
	return m.Run()
}

// The go tool does not know that these files are what is tested, unless a test looks at them.
func TestLooksAtTheSources(t *testing.T) {
	for _, name := range []string{"cmd", "gateway", "shim", "redisstore", "internal", "go.sum"} {
		err := filepath.WalkDir(filepath.Join("..", "..", name), func(name string, _ fs.DirEntry, err error) error {
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
