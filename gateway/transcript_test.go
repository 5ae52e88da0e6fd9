package gateway

import (
	"bytes"
	stdcmp "cmp"
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/trace"
	"golang.org/x/tools/txtar"

	"taskgate/gateway/config"
	"taskgate/gateway/upstream"
	"taskgate/internal/mcp"
	"taskgate/internal/metrics"
	"taskgate/internal/wiretest"
	"taskgate/shim"
)

// TestModernTranscripts plays the files in testdata/modern, each a conversation
// with the modern handler on the wire. Sections, in the order they are played:
//
//	config        YAML for the gateway; by default one upstream at /mcp
//	upstream      the fakeUpstream, as JSON
//	shim          an error that the shim returns from now on (fakeFailures)
//	task ID       a task of the fakeShim, as JSON; replaces one of the same id
//	request …     an HTTP request; see below
//	response …    what came back: compared, or written with -update
//	sent …        what the upstream client saw meanwhile
//
// A request begins with a method and a path, and perhaps a word: "bare" sends
// only the headers written out, instead of those a correct client derives from
// the body; "close" closes the gateway once nothing moves any more, "leave" has
// the client go away then. A header with the value "-" is removed. In the body,
// $META stands for an envelope of 2026-07-28 without abilities, $TASKS for one
// that declares the tasks extension.
func TestModernTranscripts(t *testing.T) { playTranscripts(t, "testdata/modern/*.txtar") }

func playTranscripts(t *testing.T, glob string) {
	files, err := filepath.Glob(glob)
	if err != nil || len(files) == 0 {
		t.Fatalf("no transcripts in %s: %v", glob, err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			ar := wiretest.Must(txtar.ParseFile(file))(t)
			synctest.Test(t, func(t *testing.T) { newStage(t).play(ar) })
			if *wiretest.Update {
				wiretest.WriteTranscript(t, file, ar)
			}
		})
	}
}

// stage is a gateway between a fake upstream and a script.
type stage struct {
	t       testing.TB
	config  *config.Config
	up      *fakeUpstream
	shim    *fakeShim
	gateway *Gateway
	last    string // the response to the last request

	log     *slog.Logger         // nil: no log
	audit   *slog.Logger         // nil: no records
	traces  trace.TracerProvider // nil: no traces
	metrics *metrics.Metrics     // nil: no metrics
}

func newStage(t testing.TB) *stage {
	up := &fakeUpstream{}
	return &stage{t: t, config: config.FromFlags("http://127.0.0.1:3001/mcp"), up: up,
		shim: &fakeShim{up: up, tasks: map[shim.ID]*fakeTask{}}}
}

func (s *stage) play(ar *txtar.Archive) {
	for i, f := range ar.Files {
		kind, arg, _ := strings.Cut(f.Name, " ")
		switch kind {
		case "config":
			s.configure(f.Data)
		case "upstream":
			s.script(s.up, f.Data)
			s.up.Era = mcp.Legacy
			if s.up.Speaks == mcp.Modern.String() {
				s.up.Era = mcp.Modern
			}
		case "shim":
			s.shim.fail = fakeFailures[strings.TrimSpace(string(f.Data))]
		case "task":
			task := &fakeTask{Status: shim.Working, Origin: "ext", Created: time.Now()}
			s.script(task, f.Data)
			s.shim.tasks[shim.ID(arg)] = task
		case "request":
			s.last = s.request(string(f.Data))
		case "response":
			s.compare(&ar.Files[i], s.last)
		case "sent":
			s.compare(&ar.Files[i], s.up.sent())
		default:
			s.t.Fatalf("unknown section %q", f.Name)
		}
	}
}

func (s *stage) configure(yaml []byte) {
	s.config = wiretest.Must(config.Parse("config.yaml", yaml, func(string) (string, bool) { return "", false }))(s.t)
}

func (s *stage) script(into any, text []byte) {
	s.t.Helper()
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	wiretest.Check(s.t, d.Decode(into))
}

// compare checks what was recorded, or records it.
func (s *stage) compare(f *txtar.File, got string) {
	s.t.Helper()
	if *wiretest.Update {
		f.Data = []byte(got)
	} else if diff := cmp.Diff(string(f.Data), got); diff != "" {
		s.t.Errorf("%s (-want +got):\n%s", f.Name, diff)
	}
}

// start makes the gateway, once everything is configured. All its upstreams are one server.
func (s *stage) start() http.Handler {
	if s.gateway == nil {
		s.shim.policy = func(tool string) config.Tool { return s.config.Upstreams[0].Tool(tool, shim.Hints{}) }
		clients := map[string]upstream.Client{}
		for _, u := range s.config.Upstreams {
			clients[u.Name] = s.up
		}
		s.gateway = wiretest.Must(New(Options{Config: s.config, Shim: s.shim, Upstreams: clients, Sessions: wiretest.OpenSessions(s.t, s.config.Limits.Within(0).MaxSessions, s.config.SessionIdle),
			Logger: stdcmp.Or(s.log, slog.New(slog.DiscardHandler)), Audit: s.audit, Version: "1.0.0", TracerProvider: s.traces, Metrics: s.metrics}))(s.t)
	}
	return s.gateway.Handler()
}

// serve has a handler answer a request to the machine itself.
func serve(h http.Handler, r *http.Request) *httptest.ResponseRecorder {
	r.Host = "127.0.0.1"
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// request plays one request and returns the response as text.
func (s *stage) request(text string) string {
	s.t.Helper()
	r, word, msg := wiretest.ParseRequest(s.t, text)
	ctx, leave := context.WithCancel(context.Background())
	defer leave()
	rec := httptest.NewRecorder()
	done := make(chan struct{})
	h := s.start()
	go func() {
		defer close(done)
		h.ServeHTTP(rec, r.WithContext(ctx))
	}()
	switch word {
	case "close":
		synctest.Wait()
		wiretest.Check(s.t, s.gateway.Close(context.Background()))
	case "leave":
		synctest.Wait()
		leave()
	}
	<-done
	wiretest.CheckSchemas(s.t, msg, word, rec)
	return wiretest.ResponseText(rec)
}
