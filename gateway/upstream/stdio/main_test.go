package stdio

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"taskgate/gateway/upstream"
	"taskgate/shim"
	"taskgate/shim/shimtest"
)

// childVar makes this program the server of a test: it names what that does (child_test.go).
const childVar = "TASKGATE_TEST_CHILD"

func TestMain(m *testing.M) {
	if name, ok := os.LookupEnv(childVar); ok {
		children[name]()
		return
	}
	// The thread on which children are started lives as long as the process.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("taskgate/internal/procgroup.serve"))
}

// must ends the test at an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// check notes an error.
func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}

// errorOf is the error alone.
func errorOf(_ any, err error) error { return err }

// world is a server over stdio with its upstream client.
type world struct {
	t    *testing.T
	up   *upstream.ServerClient
	tr   *Transport
	logs *logs
}

// logs are what was logged.
type logs struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logs) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(b)
}

func (l *logs) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// start makes a world whose server is one of children. Nothing runs yet.
func start(t *testing.T, child string, c Config, u upstream.Config) *world {
	t.Helper()
	exe, err := os.Executable()
	must(t, err)
	w := &world{t: t, logs: &logs{}}
	c.Command = exe
	c.Env = append(c.Env, childVar+"="+child)
	c.Logger = slog.New(slog.NewTextHandler(w.logs, nil))
	if c.patience == 0 {
		c.patience = 200 * time.Millisecond
	}
	w.tr = New(c)
	u.Transport, u.Replica = w.tr, "r1"
	if w.up, err = upstream.New(u); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 15*time.Second)
		defer cancel()
		if err := w.up.Close(ctx); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return w
}

// legacy is a world with a legacy server that all calls share a session with.
func legacy(t *testing.T, child string, c Config) *world {
	t.Helper()
	return start(t, child, c, upstream.Config{Era: upstream.EraLegacy, Shared: true})
}

// call calls a tool.
func (w *world) call(tool string, more ...any) (shim.Reply, error) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), 20*time.Second)
	defer cancel()
	return w.up.Call(ctx, shimtest.Tool(tool, "k", more...), &shimtest.Sink{})
}

// text calls a tool that has to answer with a text.
func (w *world) text(tool string, more ...any) string {
	w.t.Helper()
	r, err := w.call(tool, more...)
	if err != nil || r.Error != nil {
		w.t.Fatalf("%s: %+v, %v", tool, r, err)
	}
	return shimtest.TextOf(w.t, r)
}

// fails calls a tool that must not be answered, and returns the error.
func (w *world) fails(tool string, more ...any) *shim.UpstreamError {
	w.t.Helper()
	r, err := w.call(tool, more...)
	ue, ok := errors.AsType[*shim.UpstreamError](err)
	if !ok {
		w.t.Fatalf("%s: %+v, %v, want an UpstreamError", tool, r, err)
	}
	return ue
}

// wantEnd wants an error of a kind, whose message has some text.
func wantEnd(t *testing.T, ue *shim.UpstreamError, kind, text string) {
	t.Helper()
	if ue.Kind != kind || !strings.Contains(ue.Message, text) {
		t.Errorf("error %q: %s, want %q: …%s…", ue.Kind, ue.Message, kind, text)
	}
}

// gone waits until a process has ended and nothing is left of it but, at most, a zombie that
// is not this process's.
func gone(t *testing.T, pid string) {
	t.Helper()
	shimtest.Eventually(t, func() bool { return !runs(t, pid) })
}
