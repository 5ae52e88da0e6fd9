package check

import (
	"debug/elf"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"taskgate/internal/otlptest"
	"taskgate/internal/proc"
	"taskgate/internal/programtest"
	"taskgate/internal/taskclient"
)

const (
	patience = 20 * time.Second

	unitFile   = "/usr/lib/systemd/system/taskgate.service"
	configFile = "/etc/taskgate/taskgate.yaml"
	varsFile   = "/etc/taskgate/environment"
	stateDir   = "/var/lib/taskgate"
	// dynamicUser is the first of those that DynamicUser= chooses from.
	dynamicUser = 61184
)

// TestDeb installs the package, runs the service as its unit says, and removes it again.
func TestDeb(t *testing.T) {
	deb, err := filepath.Abs(built(t, "_linux_amd64.deb")[0])
	if err != nil {
		t.Fatal(err)
	}
	if os.Getenv("CI") == "" || os.Geteuid() != 0 {
		absent(t, "this test installs a package: it is for CI, as root")
	}
	for _, path := range []string{filepath.Dir(configFile), stateDir, "/usr/bin/taskgate"} {
		if _, err := os.Lstat(path); err == nil {
			t.Fatalf("%s is there: this machine has a taskgate already", path)
		}
	}
	t.Cleanup(func() {
		_ = exec.Command("dpkg", "--purge", "taskgate").Run() // what is left is what the test asserts
		_ = os.RemoveAll(filepath.Dir(configFile))
		_ = os.RemoveAll(stateDir)
	})
	run(t, "apt-get", "install", "--yes", deb)
	files := strings.Fields(run(t, "dpkg", "--listfiles", "taskgate"))
	checkUnit(t)

	s := newService(t)
	s.start(t)
	id := s.callTool(t)
	s.showsVersion(t)
	s.stop(t)
	s.start(t)
	var answer []byte // the gateway's own, before it has asked the server anything
	client := &taskclient.Client{URL: "http://" + s.listen + "/mcp", Tasks: true, Trace: func(m taskclient.Message) { answer = m.Body }}
	if task, err := client.Get(t.Context(), id); err != nil || task.Status != "completed" {
		t.Errorf("after a restart the task is %+v, %v", task, err)
	}
	if own := fmt.Sprintf(`/serverInfo":{"name":"taskgate","version":"v%s"}`, version(t)); !strings.Contains(string(answer), own) {
		t.Errorf("the server info is not %s: %s", own, answer)
	}
	s.stop(t)

	run(t, "apt-get", "remove", "--yes", "taskgate")
	var left []string
	for _, file := range files {
		if info, err := os.Lstat(file); err == nil && !info.IsDir() {
			left = append(left, file)
		}
	}
	if !slices.Equal(left, []string{configFile}) {
		t.Errorf("after the removal there are still %q", left)
	}
	if kept, err := os.ReadDir(stateDir); err != nil || len(kept) == 0 {
		t.Errorf("the state is gone: %v, %v", kept, err)
	}
	run(t, "dpkg", "--purge", "taskgate")
	if _, err := os.Stat(configFile); err == nil {
		t.Errorf("after the purge there still is %s", configFile)
	}
}

// TestDebIsWhole: the package needs no other one, as its program needs none: it runs in an empty root.
func TestDebIsWhole(t *testing.T) {
	for _, deb := range built(t, ".deb") {
		for _, field := range []string{"Depends", "Pre-Depends"} {
			if needed := strings.TrimSpace(run(t, "dpkg-deb", "-f", deb, field)); needed != "" {
				t.Errorf("%s: %s: %s", deb, field, needed)
			}
		}
		root := t.TempDir()
		run(t, "dpkg-deb", "-x", deb, root)
		program := filepath.Join(root, "usr/bin/taskgate")
		f, err := elf.Open(program)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range f.Progs {
			if p.Type == elf.PT_INTERP || p.Type == elf.PT_DYNAMIC {
				t.Errorf("%s: the program has %s", deb, p.Type)
			}
		}
		_ = f.Close()
		if os.Geteuid() != 0 || !strings.HasSuffix(deb, "_linux_"+runtime.GOARCH+".deb") {
			continue
		}
		empty := t.TempDir()
		if err := os.Rename(program, filepath.Join(empty, "taskgate")); err != nil {
			t.Fatal(err)
		}
		alone := exec.Command("/taskgate", "version")
		alone.SysProcAttr, alone.Dir, alone.Env = &syscall.SysProcAttr{Chroot: empty}, "/", []string{}
		if out, err := alone.CombinedOutput(); err != nil || !strings.HasPrefix(string(out), "taskgate v"+version(t)+" ") {
			t.Errorf("%s in an empty root: %s%v", deb, out, err)
		}
	}
}

// checkUnit: systemd takes the unit, and finds it little exposed (0 to 100).
func checkUnit(t *testing.T) {
	t.Helper()
	run(t, "systemd-analyze", "verify", "--man=no", unitFile)
	exposed := run(t, "systemd-analyze", "security", "--offline=true", "--threshold=15", "--no-pager", unitFile)
	lines := strings.Split(strings.TrimSpace(exposed), "\n")
	t.Log(lines[len(lines)-1])
}

// service is the service of the installed package.
type service struct {
	listen, admin string
	settings      map[string]string // of the unit
	receiver      *otlptest.Receiver
	said          chan string // to its supervisor
	process       *proc.Process
}

// newService configures it: with the line that the file shows, and with addresses that are free.
func newService(t *testing.T) *service {
	t.Helper()
	s := &service{settings: readUnit(t, unitFile), receiver: otlptest.Start(t)}
	slow := programtest.FreeAddr(t)
	s.listen, s.admin = programtest.FreeAddr(t), programtest.FreeAddr(t)
	startSlowServer(t, slow)
	config, err := os.ReadFile(configFile)
	if err != nil {
		t.Fatal(err)
	}
	named := strings.Replace(string(config), "#  - {", "  - {defaults: {grace: 1s}, ", 1)
	named = strings.Replace(named, "127.0.0.1:3001", slow, 1)
	if !strings.Contains(named, "\n  - {") || !strings.Contains(named, slow) {
		t.Fatalf("%s shows no server:\n%s", configFile, config)
	}
	named += fmt.Sprintf("listen: %s\nadmin: %s\n", s.listen, s.admin)
	if err := os.WriteFile(configFile, []byte(named), 0o644); err != nil {
		t.Fatal(err)
	}
	vars := strings.Join(s.receiver.Env(), "\n") + "\nOTEL_METRICS_EXPORTER=none\n"
	if err := os.WriteFile(varsFile, []byte(vars), 0o600); err != nil {
		t.Fatal(err)
	}
	return s
}

func startSlowServer(t *testing.T, addr string) *proc.Process {
	t.Helper()
	program := filepath.Join(t.TempDir(), "slowserver")
	if err := programtest.Build("-o", program, "./examples/slowserver"); err != nil {
		t.Fatal(err)
	}
	return programtest.Start(t, proc.Command{Name: "slowserver", Path: program, Args: []string{"--listen", addr}}, 0, addr)
}

// start does what systemd does by the unit: a user and a folder for it alone, no capabilities, the
// variables of the file and no others. It waits until the service says that it is ready.
func (s *service) start(t *testing.T) {
	t.Helper()
	for key, want := range map[string]string{"Type": "notify", "DynamicUser": "yes", "StateDirectory": "taskgate", "EnvironmentFile": "-" + varsFile,
		"CapabilityBoundingSet": "", "NoNewPrivileges": "yes", "WorkingDirectory": stateDir, "Environment": "HOME=" + stateDir, "KillMode": "mixed"} {
		if got, ok := s.settings[key]; !ok || got != want {
			t.Fatalf("%s=%s in the unit is news to this test", key, got)
		}
	}
	if err := os.MkdirAll(stateDir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(stateDir, dynamicUser, dynamicUser); err != nil {
		t.Fatal(err)
	}
	socket, err := os.MkdirTemp("/tmp", "notify")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(socket) })
	if err := os.Chmod(socket, 0o755); err != nil {
		t.Fatal(err)
	}
	socket += "/socket"
	supervisor, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = supervisor.Close() }) // and so the reader ends
	s.said = make(chan string, 1000)
	go func(said chan<- string) {
		for b := make([]byte, 4096); ; {
			n, err := supervisor.Read(b)
			if err != nil {
				return
			}
			said <- string(b[:n])
		}
	}(s.said)
	if err := os.Chmod(socket, 0o666); err != nil {
		t.Fatal(err)
	}
	vars, err := os.ReadFile(varsFile)
	if err != nil {
		t.Fatal(err)
	}
	user := fmt.Sprint(dynamicUser)
	args := []string{"--reuid", user, "--regid", user, "--clear-groups", "--no-new-privs", "--bounding-set", "-all", "--inh-caps", "-all",
		"env", "-i", s.settings["Environment"], "STATE_DIRECTORY=" + stateDir, "NOTIFY_SOCKET=" + socket, "WATCHDOG_USEC=1000000"}
	args = append(append(args, strings.Fields(string(vars))...), strings.Fields(s.settings["ExecStart"])...)
	if s.process, err = proc.Start(proc.Command{Name: "the service", Path: "setpriv", Args: args, Dir: stateDir}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.process.Kill)
	s.hears(t, "READY=1")
	s.hears(t, "WATCHDOG=1")
}

// hears waits for what the service says to its supervisor.
func (s *service) hears(t *testing.T, want string) {
	t.Helper()
	deadline := time.After(patience)
	for {
		select {
		case state := <-s.said:
			if slices.Contains(strings.Split(state, "\n"), want) {
				return
			}
		case <-deadline:
			t.Fatalf("it does not say %s\n%s", want, s.process.Output())
		}
	}
}

// callTool makes the call of the README: a slow one becomes a task.
func (s *service) callTool(t *testing.T) (id string) {
	t.Helper()
	client := &taskclient.Client{URL: "http://" + s.listen + "/mcp", Tasks: true}
	_, task, err := client.CallTool(t.Context(), "research", map[string]any{"topic": "tea", "seconds": 3})
	if err != nil || task == nil {
		t.Fatalf("the call is answered with %v, %v, and not with a task\n%s", task, err, s.process.Output())
	}
	ended, err := client.Wait(t.Context(), task.ID, nil)
	if err != nil || ended.Status != "completed" {
		t.Fatalf("the task is %+v, %v", ended, err)
	}
	return task.ID
}

// showsVersion: the command line, /metrics and the spans have the version that was built.
func (s *service) showsVersion(t *testing.T) {
	t.Helper()
	want := "v" + version(t)
	if got := run(t, "/usr/bin/taskgate", "version"); !strings.HasPrefix(got, "taskgate "+want+" ") {
		t.Errorf("the version is %q", got)
	}
	resp, err := http.Get("http://" + s.admin + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	page, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(page), `service_version="`+want+`"`) {
		t.Errorf("target_info lacks the version:\n%.2000s", page)
	}
	s.receiver.Until(t, "a span", patience, func() bool { return len(s.receiver.Spans()) > 0 })
	for _, span := range s.receiver.Spans() {
		if got := span.Resource["service.version"]; got != want {
			t.Fatalf("a span is of version %q", got)
		}
	}
}

// stop does what systemd does, and finds that the service has said so and has ended well.
func (s *service) stop(t *testing.T) {
	t.Helper()
	if err := s.process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	s.hears(t, "STOPPING=1")
	select {
	case <-s.process.Done():
	case <-time.After(patience):
		t.Fatal("the service does not end")
	}
	if code := s.process.ExitCode(); code != 0 {
		t.Errorf("it has ended with %d:\n%s", code, s.process.Output())
	}
}
