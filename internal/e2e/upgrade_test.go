package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"taskgate/internal/mcp"
	"taskgate/internal/programtest"
	"taskgate/internal/redistest"
	"taskgate/internal/taskclient"
)

// previousCommit is the version before this one: what is released, or else a commit.
const previousCommit = "b0a4abccb78a21a8e5941f771931de51862d3128"

var upgrades = flag.Int("upgrades", 2, "how often TestUpgrade goes from the version before to this one and back")

// previous is the program of the version before, in bin. Its sources stay in .cache.
var previous = sync.OnceValues(func() (program string, err error) {
	root, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		return "", err
	}
	program = "taskgate-" + previousCommit[:7]
	sources := filepath.Join(root, ".cache", program)
	if _, err := os.Stat(sources); err != nil {
		if err := checkOut(root, sources); err != nil {
			return "", err
		}
	}
	build := exec.Command("go", "build", "-buildvcs=false", "-o", filepath.Join(bin, program), "./cmd/taskgate")
	build.Dir = sources
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%s: %w\n%s", build, err, out)
	}
	return program, nil
})

// checkOut has the sources of the version before in a folder, all of them or none.
func checkOut(root, sources string) error {
	if err := os.MkdirAll(filepath.Dir(sources), 0o755); err != nil {
		return err
	}
	dir, err := os.MkdirTemp(filepath.Dir(sources), "sources")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir) // where it has that name still
	// A checkout in a container may be another user's.
	archive := exec.Command("git", "-c", "safe.directory=*", "archive", previousCommit, "--", "go.mod", "go.sum", "cmd", "gateway", "internal", "redisstore", "shim")
	archive.Dir = root
	files, err := archive.Output()
	if err != nil {
		return fmt.Errorf("%w: commit %s is needed (git fetch --unshallow): %w", errNoHistory, previousCommit, err)
	}
	unpack := exec.Command("tar", "-x", "-C", dir)
	unpack.Stdin = bytes.NewReader(files)
	if out, err := unpack.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", unpack, err, out)
	}
	return os.Rename(dir, sources)
}

var errNoHistory = errors.New("the history is incomplete")

// upgrading is what rolling has not: servers whose calls last as long as the test wants.
const upgrading = `
  - {name: held, url: %s, defaults: {tasks: always, poll_interval: 100ms}}
drain_timeout: 3s
resume_after: 50ms
state_keys: ["MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="]
`

// upgradeWorld is replicas of two versions over one Redis, and calls that are under way while they change.
type upgradeWorld struct {
	*rollingWorld
	servers map[string]*questioner
	holds   *countingServer
}

func newUpgradeWorld(t *testing.T, program string) *upgradeWorld {
	t.Helper()
	w := &upgradeWorld{holds: startCounting(t, sdk.NewMemoryEventStore(nil)), servers: map[string]*questioner{
		"resumable": startQuestioner(t, resumable()),
		"modern":    startQuestioner(t, &sdk.StreamableHTTPOptions{Stateless: true}),
	}}
	store, slow := redistest.Start(t), startServer(t, "slowserver")
	w.rollingWorld = startRolling(t, program, 2, func(admin string) string {
		yaml := fmt.Sprintf(rolling, store.URL(), admin, slow)
		for server, q := range w.servers {
			for _, policy := range []string{"auto", "always"} {
				yaml += fmt.Sprintf(askingUpstream, server+"-"+policy, q.url, askingPolicies[policy], eraOf(server == "modern"))
			}
		}
		return yaml + fmt.Sprintf(upgrading, w.holds.url)
	})
	return w
}

// spanning is a call that begins before the replicas change, and ends after it.
type spanning struct {
	askedCall
	server string
	err    error
	done   chan struct{}
}

// ask begins a call that asks, of a client with tasks or of one without, which is parked. It returns once
// its client is asked; the client answers when free is closed.
func (w *upgradeWorld) ask(t *testing.T, server string, tasks bool, name string, free <-chan struct{}) *spanning {
	t.Helper()
	c := &spanning{server: server, done: make(chan struct{})}
	c.Tool, c.Kind, c.Answer, c.call = "form", "form", "accept", fmt.Sprintf("%s, %s, tasks %t", name, server, tasks)
	c.Args, c.Secret = map[string]any{"call": c.call}, toldSecret+c.call
	capabilities, policy := map[string]any{"elicitation": map[string]any{"form": map[string]any{}}}, "auto"
	if tasks {
		capabilities["extensions"], policy = map[string]any{mcp.ExtensionTasks: map[string]any{}}, "always"
	}
	do := requester(t.Context(), w.url+"/"+server+"-"+policy+"/mcp", capabilities)
	asked := make(chan struct{})
	first := sync.OnceFunc(func() { close(asked) })
	go func() {
		defer close(c.done)
		c.err = c.converse(func(method string, params map[string]any) (json.RawMessage, error) {
			if params["inputResponses"] != nil {
				first()
				<-free
			}
			return do(method, params)
		})
	}()
	select {
	case <-asked:
	case <-c.done:
		t.Errorf("%s: it ended before it was asked: %q, %v", c.call, c.Text, c.err)
	}
	return c
}

// way has all replicas replaced by those of a program. What began before ends as if nothing had been.
func (w *upgradeWorld) way(t *testing.T, program string) {
	t.Helper()
	name, free := "to "+program, make(chan struct{})
	var asked []*spanning
	for server := range w.servers {
		for _, tasks := range []bool{true, false} {
			asked = append(asked, w.ask(t, server, tasks, name, free))
		}
	}
	client := &taskclient.Client{URL: w.url + "/held/mcp", Tasks: true}
	held := callTask(t, client, "work", keyed(name))
	until(t, "the call has begun", func() bool {
		began, _ := w.holds.times(name)
		return began > 0
	})

	w.restart(t, program)

	close(free)
	w.holds.finish <- struct{}{}
	end, err := client.Wait(t.Context(), held.ID, nil)
	if err != nil || end.Status != taskclient.Completed || textOf(t, end.Result) != "did "+name {
		t.Errorf("a running task ended as %+v, %v", end, err)
	}
	if n, cancelled := w.holds.times(name); n != 1 || cancelled != 0 {
		t.Errorf("the call of a running task has begun %d times, and was cancelled %d times", n, cancelled)
	}
	for _, c := range asked {
		<-c.done
		begun, heard := w.servers[c.server].of(c.call)
		if c.err != nil || !strings.Contains(c.Text, c.Secret) || begun != 1 || len(heard) != 1 {
			t.Errorf("%s: it has begun %d times, heard %q, and said %q, %v", c.call, begun, heard, c.Text, c.err)
		}
	}
	// The first of them was alone when the last of those before ended.
	if out := w.backends[0].process.Output(); !strings.Contains(out, "took over a task") {
		t.Errorf("%s has taken over nothing:\n%s", program, out)
	}
}

// TestUpgrade: the version before and this one work next to each other over one Redis. While the replicas are
// replaced one after the other, and back again, no client sees an error, and each task that runs, asks or is
// parked is adopted by the other version and ends well.
func TestUpgrade(t *testing.T) {
	programtest.Longest(t)
	t.Parallel()
	before, err := previous()
	if errors.Is(err, errNoHistory) {
		need(t, false, err.Error())
	}
	if err != nil {
		t.Fatal(err)
	}
	for n := range *upgrades {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			t.Parallel()
			w := newUpgradeWorld(t, before)
			defer w.load(t)()
			w.way(t, "taskgate")
			w.way(t, before)
		})
	}
}
