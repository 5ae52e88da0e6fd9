package check

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/compose-spec/compose-go/v2/loader"
	"github.com/compose-spec/compose-go/v2/types"

	"taskgate/gateway/config"
	"taskgate/internal/proc"
	"taskgate/internal/programtest"
	"taskgate/internal/taskclient"
)

const composeDir = "../compose"

var gateways = []string{"taskgate-a", "taskgate-b", "taskgate-c"}

// loadCompose reads the compose file as its specification says.
func loadCompose(t *testing.T) *types.Project {
	t.Helper()
	dir, err := filepath.Abs(composeDir)
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("STATE_KEY", base64.StdEncoding.EncodeToString(random()))
	project, err := loader.LoadWithContext(t.Context(), types.ConfigDetails{
		WorkingDir: dir, Environment: types.NewMapping(os.Environ()), ConfigFiles: []types.ConfigFile{{Filename: filepath.Join(dir, "compose.yaml")}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return project
}

func random() []byte {
	b := make([]byte, 32)
	_, _ = rand.Read(b) // never fails
	return b
}

// TestComposeFile: the replicas differ in nothing, have time to drain, and what the services are
// built from and mount is there.
func TestComposeFile(t *testing.T) {
	project := loadCompose(t)
	c, err := config.Load(filepath.Join(composeDir, "taskgate.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	dockerfile, err := os.ReadFile("../../Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(composeDir, "compose.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), `make snapshot TARGETS="linux/$(go env GOARCH)"`) {
		t.Error("the images are of this machine's architecture, and its comment builds for another one")
	}
	for _, name := range gateways {
		s := project.Services[name]
		if got, want := time.Duration(*s.StopGracePeriod), c.DrainDelay+c.DrainTimeout+10*time.Second; got < want {
			t.Errorf("%s has %v to stop, and needs %v", name, got, want)
		}
		if !regexp.MustCompile(`(?m)^FROM .* AS ` + s.Build.Target + `$`).Match(dockerfile) {
			t.Errorf("the Dockerfile has no stage %q", s.Build.Target)
		}
		if *s.Environment["STATE_KEY"] != os.Getenv("STATE_KEY") {
			t.Errorf("%s has another key", name)
		}
	}
	for name, s := range project.Services {
		if s.Build != nil {
			if _, err := os.Stat(filepath.Join(s.Build.Context, s.Build.Dockerfile)); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		} else if _, tag, _ := strings.Cut(s.Image, ":"); tag == "" || tag == "latest" {
			t.Errorf("%s is of any version: %s", name, s.Image)
		}
		for _, v := range s.Volumes {
			if _, err := os.Stat(v.Source); v.Type == types.VolumeTypeBind && (err != nil || !v.ReadOnly) {
				t.Errorf("%s mounts %s: read only %t, %v", name, v.Source, v.ReadOnly, err)
			}
		}
		for _, p := range s.Ports {
			if p.HostIP != "127.0.0.1" {
				t.Errorf("%s is reached from elsewhere, at %s", name, p.HostIP)
			}
		}
	}
}

// deployment is what the compose file describes, as processes of this machine: each service at a
// loopback address of its own.
type deployment struct {
	t       *testing.T
	project *types.Project
	at      map[string]string // the address of each service, without a port
	dir     string            // the configuration with these addresses
	running map[string]*proc.Process
}

func newDeployment(t *testing.T) *deployment {
	t.Helper()
	d := &deployment{t: t, project: loadCompose(t), dir: t.TempDir(), running: map[string]*proc.Process{},
		at: map[string]string{"balancer": "127.7.0.1", "taskgate-a": "127.7.0.2", "taskgate-b": "127.7.0.3", "taskgate-c": "127.7.0.4", "redis": "127.7.0.5", "slowserver": "127.7.0.6"}}
	if len(d.project.Services) != len(d.at) {
		t.Fatalf("the services are %v", d.project.ServiceNames())
	}
	for _, file := range []string{"taskgate.yaml", "haproxy.cfg"} {
		text, err := os.ReadFile(filepath.Join(composeDir, file))
		if err != nil {
			t.Fatal(err)
		}
		moved := strings.Replace(string(text), "bind :", "bind "+d.at["balancer"]+":", 1)
		for name, ip := range d.at {
			moved = regexp.MustCompile(`\b`+name+`:(\d)`).ReplaceAllString(moved, ip+":$1")
		}
		if err := os.WriteFile(filepath.Join(d.dir, file), []byte(moved), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	d.running["slowserver"] = startSlowServer(t, d.at["slowserver"]+":3001")
	d.start("redis")
	for _, name := range gateways {
		d.start(name)
	}
	d.start("balancer")
	return d
}

// start starts a service, and waits until it listens.
func (d *deployment) start(name string) {
	d.t.Helper()
	s, ip := d.project.Services[name], d.at[name]
	c := proc.Command{Name: name, Dir: d.dir}
	port := ":8080"
	switch name {
	case "balancer":
		c.Path, c.Args = "haproxy", []string{"-db", "-f", "haproxy.cfg"}
	case "redis":
		port = ":6379"
		c.Path, c.Args = s.Command[0], append(slices.Clone(s.Command[1:]), "--bind", ip)
	default:
		binary, err := filepath.Abs(dist + "/linux_amd64/taskgate")
		if err != nil {
			d.t.Fatal(err)
		}
		args := slices.Clone(s.Command)
		args[slices.Index(args, s.Volumes[0].Target)] = "taskgate.yaml"
		c.Path, c.Args = binary, append(args, "--listen", ip+":8080", "--admin", ip+":9090")
	}
	if _, err := exec.LookPath(c.Path); err != nil {
		absent(d.t, err.Error())
	}
	d.running[name] = programtest.Start(d.t, c, 0, ip+port)
}

// TestComposeRuns: through the balancer nobody notices when a replica is killed, one is stopped, or
// Redis is started again. A task outlives all of it.
func TestComposeRuns(t *testing.T) {
	built(t, "_linux_amd64.tar.gz")
	d := newDeployment(t)
	client := &taskclient.Client{URL: "http://" + d.at["balancer"] + ":8080/mcp", Tasks: true}
	calls := 0
	call := func() {
		t.Helper()
		result, _, err := client.CallTool(t.Context(), "count_words", map[string]any{"text": "one two"})
		if calls++; err != nil || result == nil {
			t.Fatalf("call %d: %s, %v", calls, result, err)
		}
	}
	programtest.Until(t, "the balancer has asked the replicas", 2*patience, func() bool {
		_, _, err := client.CallTool(t.Context(), "count_words", map[string]any{"text": "one two"})
		return err == nil
	})
	_, task, err := client.CallTool(t.Context(), "research", map[string]any{"topic": "tea", "seconds": 10})
	if err != nil || task == nil {
		t.Fatalf("%v, %v", task, err)
	}

	d.running["taskgate-a"].Kill()
	for range 20 {
		call()
	}
	d.start("taskgate-a")
	d.running["redis"].Stop(patience)
	d.start("redis")
	if _, err := client.Get(t.Context(), task.ID); err != nil {
		t.Errorf("Redis was started again, and the task is gone: %v", err)
	}
	stopping := d.running["taskgate-b"]
	if err := stopping.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	programtest.Until(t, "the replica has ended", 2*patience, func() bool {
		call()
		select {
		case <-stopping.Done():
			return true
		default:
			return false
		}
	})
	ended, err := client.Wait(t.Context(), task.ID, nil)
	if err != nil || ended.Status != taskclient.Completed {
		t.Errorf("the task is %+v, %v", ended, err)
	}
	t.Logf("%d calls", calls)
}

// TestComposeSharesAFate: the balancer goes on with replicas that all miss the same thing. A poll waits for Redis, and
// a task that has ended can be read without its server.
func TestComposeSharesAFate(t *testing.T) {
	built(t, "_linux_amd64.tar.gz")
	d := newDeployment(t)
	client := &taskclient.Client{URL: "http://" + d.at["balancer"] + ":8080/mcp", Tasks: true}
	var task *taskclient.Task
	programtest.Until(t, "there is a task", 2*patience, func() bool {
		_, task, _ = client.CallTool(t.Context(), "research", map[string]any{"topic": "tea", "seconds": 3})
		return task != nil
	})
	if _, err := client.Wait(t.Context(), task.ID, nil); err != nil {
		t.Fatal(err)
	}
	d.running["redis"].Stop(patience)
	d.untilNoted(t)
	polled := make(chan error, 1)
	go func() {
		_, err := client.Get(t.Context(), task.ID)
		polled <- err
	}()
	d.start("redis")
	if err := <-polled; err != nil {
		t.Errorf("Redis was away, and a poll is answered with %v", err)
	}
	d.running["slowserver"].Kill()
	d.untilNoted(t)
	if _, err := client.Get(t.Context(), task.ID); err != nil {
		t.Errorf("the server is away, and a poll is answered with %v", err)
	}
}

// untilNoted waits until all replicas miss something, and the balancer has had the time to notice.
func (d *deployment) untilNoted(t *testing.T) {
	t.Helper()
	for _, name := range gateways {
		programtest.Until(t, name+" misses something", patience, func() bool {
			resp, err := http.Get("http://" + d.at[name] + ":9090/readyz")
			if err != nil {
				return false
			}
			_ = resp.Body.Close()
			return resp.StatusCode == http.StatusServiceUnavailable
		})
	}
	<-time.After(3 * time.Second) // "inter 1s fall 2"
}

// TestComposeRepeatsReads: what only reads is answered though the replica that has it dies. A call is not repeated:
// that replica may have run the tool.
func TestComposeRepeatsReads(t *testing.T) {
	built(t, "_linux_amd64.tar.gz")
	d := newDeployment(t)
	d.change("balancer", "haproxy.cfg", "fall 2", "fall 1000") // it notices nothing
	client := &taskclient.Client{URL: "http://" + d.at["balancer"] + ":8080/mcp", Tasks: true}
	var task *taskclient.Task
	programtest.Until(t, "there is a task", 2*patience, func() bool {
		_, task, _ = client.CallTool(t.Context(), "research", map[string]any{"topic": "tea", "seconds": 60})
		return task != nil
	})
	if err := d.running["taskgate-a"].Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	// Each replica gets one of each kind, and two can answer.
	begin := func(what string, request func() error) (answered *atomic.Int64, wait func()) {
		answered = new(atomic.Int64)
		var all sync.WaitGroup
		for range gateways {
			all.Go(func() {
				if err := request(); err == nil {
					answered.Add(1)
				}
			})
		}
		programtest.Until(t, what, 2*patience, func() bool { return answered.Load() == int64(len(gateways)-1) })
		return answered, all.Wait
	}
	reads, waitReads := begin("two reads are answered", func() error {
		_, err := client.Get(t.Context(), task.ID)
		return err
	})
	calls, waitCalls := begin("two calls are answered", func() error {
		_, _, err := client.CallTool(t.Context(), "count_words", map[string]any{"text": "one two"})
		return err
	})
	d.running["taskgate-a"].Kill()
	waitReads()
	waitCalls()
	if reads.Load() != 3 || calls.Load() != 2 {
		t.Errorf("%d of 3 reads and %d of 3 calls were answered, want 3 and 2", reads.Load(), calls.Load())
	}
}

// change starts a service again with another configuration.
func (d *deployment) change(name, file, from, to string) {
	d.t.Helper()
	d.running[name].Kill()
	path := filepath.Join(d.dir, file)
	text, err := os.ReadFile(path)
	if err == nil {
		err = os.WriteFile(path, bytes.ReplaceAll(text, []byte(from), []byte(to)), 0o600)
	}
	if err != nil {
		d.t.Fatal(err)
	}
	d.start(name)
}
