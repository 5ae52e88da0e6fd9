package terminal

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"taskgate/gateway/auth"
	"taskgate/gateway/operator"
	"taskgate/shim"
)

// source is a deployment with two tasks of ada and one of bob, of which ada's second one has ended.
type source struct {
	mu        sync.Mutex
	all       []operator.Task
	cancelled []string
	paused    []operator.Pause
}

const (
	first  = "11111111-0000-4000-8000-000000000001"
	second = "11111111-0000-4000-8000-000000000002"
	third  = "33333333-0000-4000-8000-000000000003"
)

func newSource() *source {
	made := time.Now().Add(-90 * time.Minute)
	return &source{all: []operator.Task{
		{ID: first, Upstream: "reports", Tool: "research", Status: "working", Principal: "ada", Replica: "r1", Message: "half\x1b[31m\tdone", CreatedAt: made, BegunAt: made, UpdatedAt: made},
		{ID: second, Upstream: "reports", Tool: "write", Status: "completed", Outcome: "completed", Principal: "ada", CreatedAt: made, BegunAt: made.Add(-6 * time.Second), UpdatedAt: made.Add(90 * time.Second)},
		{ID: third, Upstream: "weather", Tool: "forecast", Status: "input_required", CreatedAt: made, BegunAt: made, UpdatedAt: made},
	}}
}

func (s *source) Tasks(_ context.Context, q shim.Query) (page operator.Tasks, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	from := 0
	if q.Cursor != "" {
		from = slices.IndexFunc(s.all, func(t operator.Task) bool { return t.ID == q.Cursor })
	}
	for _, t := range s.all[from:] {
		switch {
		case len(q.States) > 0 && !slices.Contains(q.States, shim.State(t.Status)), q.Owner != nil && *q.Owner != t.Principal, !strings.HasPrefix(t.ID, q.Prefix):
		case len(page.Tasks) == min(q.Limit, 1): // pages of one task
			page.Next = t.ID
			return page, nil
		default:
			page.Tasks = append(page.Tasks, t)
		}
	}
	return page, nil
}

func (s *source) Task(_ context.Context, id string, content bool) (operator.TaskDetail, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.all {
		if t.ID == id {
			d := operator.TaskDetail{Task: t, TraceID: "abc", ContentShown: content, Events: []operator.Event{
				{At: t.CreatedAt.Add(-time.Second), Kind: "sent"}, {At: t.CreatedAt, Kind: "made", Detail: "r1"},
			}}
			if content {
				d.Arguments = json.RawMessage(`{"topic":"<tea>"}`)
			}
			return d, nil
		}
	}
	return operator.TaskDetail{}, shim.ErrNotFound
}

func (s *source) Totals(context.Context, shim.Query) (operator.Totals, error) {
	return operator.Totals{}, errors.New("nobody asks")
}

func (s *source) Cancel(_ context.Context, id, _ string) (operator.Task, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, t := range s.all {
		if t.ID == id {
			if t.Status == "completed" || t.Status == "cancelled" {
				return t, shim.ErrFinal
			}
			s.all[i].Status = "cancelled"
			s.cancelled = append(s.cancelled, id)
			return s.all[i], nil
		}
	}
	return operator.Task{}, shim.ErrNotFound
}

func (s *source) Rerun(_ context.Context, id, _ string) (old, made operator.Task, err error) {
	if id != third {
		return old, made, &shim.ChangeError{Reason: "its arguments were not kept"}
	}
	return operator.Task{ID: id}, operator.Task{ID: second}, nil
}

func (s *source) Questions(context.Context, bool) (operator.Questions, error) {
	return operator.Questions{}, nil
}

func (s *source) Replicas(context.Context) (operator.Replicas, error) {
	since := time.Now().Add(-time.Hour)
	return operator.Replicas{Replicas: []operator.Replica{
		{Name: "r1", Alive: true, SeenAt: time.Now(), Since: &since, Version: "v1", Tasks: 2}, {Name: "r2", SeenAt: time.Now().Add(-time.Minute)},
	}}, nil
}

func (s *source) Upstreams(context.Context) (operator.Upstreams, error) {
	return operator.Upstreams{Upstreams: []operator.Upstream{{
		Name: "reports", Era: "legacy", Transport: "http", Calls: 3, Policies: []operator.Policy{{Tools: "*", Tasks: "auto"}}, Paused: s.paused,
		Replicas: []operator.Reach{{Replica: "r1", Error: "connection refused"}},
	}}}, nil
}

func (s *source) Pause(_ context.Context, upstream, tool, by string) (operator.Pause, error) {
	if upstream != "reports" {
		return operator.Pause{}, &shim.ChangeError{Reason: "there is no upstream"}
	}
	s.paused = append(s.paused, operator.Pause{Upstream: upstream, Tool: tool, Operator: by, Since: time.Now()})
	return s.paused[len(s.paused)-1], nil
}

func (s *source) Resume(_ context.Context, upstream, tool string) (operator.Pause, error) {
	i := slices.IndexFunc(s.paused, func(p operator.Pause) bool { return p.Upstream == upstream && p.Tool == tool })
	if i < 0 {
		return operator.Pause{}, &shim.ChangeError{Reason: "it is not paused"}
	}
	p := s.paused[i]
	s.paused = slices.Delete(s.paused, i, i+1)
	return p, nil
}

func (s *source) Store(context.Context) (operator.Store, error) {
	return operator.Store{}, errors.New("nobody asks")
}

func (s *source) Clients(context.Context) (operator.Clients, error) {
	return operator.Clients{Others: 7, Clients: []operator.Client{
		{Principal: "ada", LastMinute: 120, LastHour: 4000, Methods: map[string]int{"tools/call": 3000, "tasks/get": 1000}, Holdings: operator.Holdings{Sessions: 2, Streams: 1, Calls: 3, Tasks: 4}},
		{Address: "192.0.2.7", Names: []string{"flood\x1b[2J"}, LastMinute: 9, LastHour: 9, Methods: map[string]int{"ping": 9}},
	}}, nil
}

func (s *source) Stats(context.Context, string) (operator.Stats, error) {
	return operator.Stats{}, errors.New("nobody asks")
}

func (s *source) Changes(context.Context, func()) error { return errors.New("nobody asks") }

// oneKey lets in who has the key "right".
type oneKey struct{}

func (oneKey) Identify(r *http.Request) (auth.Caller, *auth.Refusal) {
	if r.Header.Get("Authorization") != "Bearer right" {
		return auth.Caller{}, &auth.Refusal{Status: http.StatusUnauthorized, Message: "a key is needed"}
	}
	return auth.Caller{Principal: shim.Principal{Subject: "ops"}}, nil
}

func (oneKey) Recall(*http.Request) string { return "" }

// console is a command line and the gateway that it asks.
type console struct {
	*source
	url string
	in  string
	out bytes.Buffer
	err bytes.Buffer
}

func newConsole(t *testing.T) *console {
	t.Helper()
	s := newSource()
	web := httptest.NewServer(operator.New(operator.Options{Source: s, Method: oneKey{}, Content: true}))
	t.Cleanup(web.Close)
	return &console{source: s, url: web.URL}
}

// run executes a command line, which is separated by spaces.
func (c *console) run(ctx context.Context, line string, interactive bool) error {
	c.out.Reset()
	c.err.Reset()
	var o Options
	flags := flag.NewFlagSet("test", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	o.Define(flags)
	words := strings.Fields(line)
	verb, rest := words[0], words[1:]
	var args []string
	for {
		if err := flags.Parse(rest); err != nil {
			return err
		}
		if flags.NArg() == 0 {
			break
		}
		args, rest = append(args, flags.Arg(0)), flags.Args()[1:]
	}
	g, err := NewGateway(c.url+"/console/#token=right", "")
	if err != nil {
		return err
	}
	s := Streams{In: strings.NewReader(c.in), Out: &c.out, Err: &c.err, Interactive: interactive, Size: func() (int, int) { return 60, 20 }}
	return Run(ctx, g, s, o, verb, args)
}

// TestCommands: each command line prints what it should, in lines that are compared word by word.
func TestCommands(t *testing.T) {
	for line, want := range map[string][]string{
		"tasks list": {
			"ID UPSTREAM TOOL PRINCIPAL STATE AGE/TOOK MADE REPLICA MESSAGE",
			"11111111 reports research ada working 1h30m * r1 half[31m done",
			"11111111 reports write ada completed 1m36s * - -",
			"33333333 weather forecast - input_required 1h30m * - -",
		},
		"tasks list --filter status=open --filter principal=ada": {
			"ID UPSTREAM TOOL PRINCIPAL STATE AGE/TOOK MADE REPLICA MESSAGE",
			"11111111 reports research ada working 1h30m * r1 half[31m done",
		},
		"tasks list --filter status=completed,open --filter principal=ada": {
			"ID UPSTREAM TOOL PRINCIPAL STATE AGE/TOOK MADE REPLICA MESSAGE",
			"11111111 reports research ada working 1h30m * r1 half[31m done",
			"11111111 reports write ada completed 1m36s * - -",
		},
		"tasks events " + first: {
			"AT SINCE EVENT DETAIL", "* +0s sent -", "* +1s made r1", "now +1h30m working half[31m done",
		},
		"replicas": {
			"REPLICA STATE TASKS SESSIONS STREAMS UP SEEN ADDRESS HOST VERSION CONFIG",
			"r1 alive 2 0 0 1h0m * ago - - v1 -",
			"r2 gone 0 0 0 - 1m0s ago - - - -",
		},
		"clients": {
			"CLIENT NAMES LAST-MINUTE LAST-HOUR MOSTLY SESSIONS STREAMS CALLS TASKS",
			"ada - 120 4000 tools/call 2 1 3 4",
			"192.0.2.7 flood[2J 9 9 ping 0 0 0 0",
			"others - 7 - - - - - -",
		},
		"upstreams": {
			"UPSTREAM STATE ERA TRANSPORT CALLS QUEUED TASKS POLICIES",
			"reports unreachable legacy http 3 0 0 *: auto",
			"reports from r1: connection refused",
		},
	} {
		c := newConsole(t)
		if err := c.run(t.Context(), line, false); err != nil {
			t.Errorf("%s: %v", line, err)
			continue
		}
		got := strings.Split(strings.TrimSpace(day.ReplaceAllString(c.out.String(), "")), "\n")
		if len(got) != len(want) {
			t.Errorf("%s prints\n%s", line, &c.out)
			continue
		}
		for i := range want {
			if !matches(strings.Fields(got[i]), strings.Fields(want[i])) {
				t.Errorf("%s prints\n%s\nand not\n%s", line, got[i], want[i])
			}
		}
	}
}

// day is what stands before a time that is not of today.
var day = regexp.MustCompile(`\d{4}-\d\d-\d\d `)

// matches compares words, of which * is any.
func matches(got, want []string) bool {
	return slices.EqualFunc(got, want, func(g, w string) bool { return w == "*" && g != "" || g == w })
}

func TestShow(t *testing.T) {
	c := newConsole(t)
	if err := c.run(t.Context(), "tasks show 33", false); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{third, "forecast at weather", "anonymous", `{"topic":"<tea>"}`, "input_required"} {
		if !strings.Contains(c.out.String(), want) {
			t.Errorf("%q is missing in\n%s", want, &c.out)
		}
	}
}

func TestJSON(t *testing.T) {
	c := newConsole(t)
	for line, into := range map[string]any{
		"tasks list --json": &operator.Tasks{}, "tasks show 33 --json": &operator.TaskDetail{}, "tasks events --json 33": &operator.TaskDetail{},
		"replicas --json": &operator.Replicas{}, "upstreams --json": &operator.Upstreams{},
	} {
		d := json.NewDecoder(&c.out)
		d.DisallowUnknownFields()
		if err := c.run(t.Context(), line, false); err != nil {
			t.Fatal(err)
		}
		if err := d.Decode(into); err != nil {
			t.Errorf("%s: %v", line, err)
		}
	}
}

// TestRerunCommand: each call that runs again is named with its new task, and each that does not with the reason.
func TestRerunCommand(t *testing.T) {
	c := newConsole(t)
	err := c.run(t.Context(), "tasks rerun 33 "+first, false)
	if err == nil || err.Error() != first+": its arguments were not kept" || c.out.String() != third+" runs again as "+second+"\n" {
		t.Errorf("%v, %s", err, &c.out)
	}
	if err := c.run(t.Context(), "tasks rerun", false); err == nil || !strings.Contains(err.Error(), "needs the id") {
		t.Error(err)
	}
}

// TestPauseCommand: what is paused is named and listed, and each name that is no upstream has its reason.
func TestPauseCommand(t *testing.T) {
	c := newConsole(t)
	for _, one := range []struct{ line, want, mistake string }{
		{"pause reports/research reports", "reports/research is paused\nreports is paused\n", ""},
		{"pause", "UPSTREAM TOOL PAUSED BY\nreports research 0s ago ops\nreports all 0s ago ops\n", ""},
		{"upstreams", "reports unreachable, paused legacy http 3 0 0 *: auto", ""},
		{"resume reports", "reports is resumed\n", ""},
		{"upstreams", "reports unreachable, paused in part legacy http 3 0 0 *: auto", ""},
		{"resume reports", "", "reports: it is not paused"},
		{"pause other", "", "other: there is no upstream"},
		{"pause reports/", "", "needs UPSTREAM or UPSTREAM/TOOL"},
		{"pause reports --yes", "", "pause has no --yes"},
		{"resume --json reports/research", `{"upstream":"reports","tool":"research","operator":"ops","since":`, ""},
	} {
		c.out.Reset()
		err := c.run(t.Context(), one.line, false)
		if one.mistake != "" {
			if err == nil || !strings.Contains(err.Error(), one.mistake) {
				t.Errorf("%s: %v", one.line, err)
			}
		} else if got := spaces.ReplaceAllString(c.out.String(), " "); err != nil || !strings.Contains(got, one.want) {
			t.Errorf("%s: %v\n%s\nand not\n%s", one.line, err, got, one.want)
		}
	}
}

// spaces are those between the columns of a table.
var spaces = regexp.MustCompile(` +`)

func TestCancel(t *testing.T) {
	for _, one := range []struct {
		line, in    string
		interactive bool
		cancelled   []string
		mistake     string // in the error
	}{
		{line: "tasks cancel " + first + " 33", cancelled: []string{first, third}},
		{line: "tasks cancel " + second, mistake: "has ended already"},
		{line: "tasks cancel 11", mistake: "several tasks"},
		{line: "tasks cancel 22", mistake: "22: no task"},
		{line: "tasks cancel", mistake: "either ids or --filter"},
		{line: "tasks cancel --filter principal=ada", mistake: "needs --yes"},
		{line: "tasks cancel --filter principal=ada --yes", cancelled: []string{first}},
		{line: "tasks cancel --filter older_than=1h", in: "y\n", interactive: true, cancelled: []string{first, third}},
		{line: "tasks cancel --filter older_than=1h", in: "\n", interactive: true, mistake: "nothing is cancelled"},
		{line: "tasks cancel --filter older_than=1h", interactive: true, mistake: "nothing is cancelled"},
		{line: "tasks cancel --filter older_than=1h --limit 1 --yes", cancelled: []string{first}},
		{line: "tasks cancel --filter older_than=1h --limit 0 --yes", mistake: "at least 1"},
		{line: "tasks cancel --filter age=1h", mistake: "NAME=VALUE"},
		{line: "tasks cancel --filter principal=ada --filter principal= --yes", mistake: "principal is given once"},
		{line: "tasks cancel --filter upstream= --yes", mistake: "upstream is empty"},
		{line: "tasks cancel --filter id= --yes", mistake: "id is empty"},
		{line: "tasks cancel --filter principal= --yes", cancelled: []string{third}},
	} {
		c := newConsole(t)
		c.in = one.in
		err := c.run(t.Context(), one.line, one.interactive)
		if one.mistake == "" && err != nil || one.mistake != "" && (err == nil || !strings.Contains(err.Error(), one.mistake)) {
			t.Errorf("%s: %v", one.line, err)
		}
		if !slices.Equal(c.cancelled, one.cancelled) {
			t.Errorf("%s cancels %v", one.line, c.cancelled)
		}
	}
}

// TestEmptyID: an id that is empty names no task, where there is only one, too.
func TestEmptyID(t *testing.T) {
	c := newConsole(t)
	c.all = c.all[:1]
	g, err := NewGateway(c.url, "right")
	if err != nil {
		t.Fatal(err)
	}
	if err := Run(t.Context(), g, Streams{Out: io.Discard}, Options{}, "tasks", []string{"cancel", ""}); err == nil || len(c.cancelled) > 0 {
		t.Errorf("%v, and %v is cancelled", err, c.cancelled)
	}
}

// TestBeginningOfAnID: an id is what the gateway makes, a UUID and more, and its UUID is its beginning.
func TestBeginningOfAnID(t *testing.T) {
	c := newConsole(t)
	id := c.all[0].ID + "-" + strings.Repeat("0", 40)
	c.all[0].ID = id
	if err := c.run(t.Context(), "tasks show "+id[:36], false); err != nil {
		t.Error(err)
	}
}

// TestWrongKey: the error says where the key comes from, and no answer is taken for one of a gateway that is none.
func TestWrongKey(t *testing.T) {
	c := newConsole(t)
	elsewhere := httptest.NewServer(http.NotFoundHandler())
	defer elsewhere.Close()
	for address, want := range map[string]string{c.url: KeyVariable, elsewhere.URL: "is that the admin address"} {
		g, err := NewGateway(address, "wrong")
		if err != nil {
			t.Fatal(err)
		}
		err = Run(t.Context(), g, Streams{Out: io.Discard}, Options{}, "replicas", nil)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", address, err)
		}
	}
	if _, err := NewGateway("ftp://somewhere", ""); err == nil {
		t.Error("any address is taken")
	}
}

// TestWatch: watch prints what runs, and prints it again once that has changed.
func TestWatch(t *testing.T) {
	c := newConsole(t)
	ctx, stop := context.WithTimeout(t.Context(), 30*time.Second)
	defer stop()
	read, write := io.Pipe()
	end := make(chan error, 1)
	go func() {
		g, err := NewGateway(c.url, "right")
		if err == nil {
			o := Options{}
			o.Define(flag.NewFlagSet("test", flag.ContinueOnError))
			o.JSON = true
			err = Run(ctx, g, Streams{Out: write, Err: io.Discard}, o, "tasks", []string{"watch"})
		}
		end <- err
		_ = write.Close()
	}()
	lines := json.NewDecoder(read)
	var page operator.Tasks
	if err := lines.Decode(&page); err != nil || len(page.Tasks) != 2 {
		t.Fatalf("%v, %v", page, err)
	}
	if _, err := c.source.Cancel(ctx, first, "ops"); err != nil {
		t.Fatal(err)
	}
	if err := lines.Decode(&page); err != nil || len(page.Tasks) != 1 {
		t.Fatalf("%v, %v", page, err)
	}
	stop()
	go func() { _, _ = io.Copy(io.Discard, read) }()
	if err := <-end; err != nil {
		t.Error(err)
	}
}

// TestWatchOfNobody: what a program reads from watch is JSON, also while the gateway cannot say what runs.
func TestWatchOfNobody(t *testing.T) {
	var reads atomic.Int64
	gateway := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n := reads.Add(1)
		if n == 2 {
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = io.WriteString(w, `{"error":"the store is away"}`)
			return
		}
		_, _ = fmt.Fprintf(w, `{"tasks":[{"id":"%d"}]}`, n)
	}))
	defer gateway.Close()
	g, err := NewGateway(gateway.URL, "right")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithTimeout(t.Context(), 30*time.Second)
	defer stop()
	read, write := io.Pipe()
	var said bytes.Buffer
	end := make(chan error, 1)
	go func() {
		o := Options{}
		o.Define(flag.NewFlagSet("test", flag.ContinueOnError))
		o.JSON = true
		end <- Run(ctx, g, Streams{Out: write, Err: &said}, o, "tasks", []string{"watch"})
		_ = write.Close()
	}()
	lines := json.NewDecoder(read)
	for _, want := range []string{"1", "3"} {
		var page operator.Tasks
		if err := lines.Decode(&page); err != nil || len(page.Tasks) != 1 || page.Tasks[0].ID != want {
			t.Errorf("%v, %v", page, err)
			break
		}
	}
	stop()
	_, _ = io.Copy(io.Discard, read)
	if err := <-end; err != nil || said.String() != "the store is away\n" {
		t.Errorf("%q, %v", &said, err)
	}
}

// TestWatchIsJSONOnATerminal: each change is one whole line there, too.
func TestWatchIsJSONOnATerminal(t *testing.T) {
	c := newConsole(t)
	ctx, stop := context.WithTimeout(t.Context(), 1500*time.Millisecond)
	defer stop()
	if err := c.run(ctx, "tasks watch --json", true); err != nil {
		t.Fatal(err)
	}
	var page operator.Tasks
	if err := json.Unmarshal(c.out.Bytes(), &page); err != nil || len(page.Tasks) != 2 {
		t.Errorf("%q: %v", &c.out, err)
	}
}

// TestEscapeJSON: what a terminal would obey is escaped, and stays the same value.
func TestEscapeJSON(t *testing.T) {
	for given, want := range map[string]string{
		"{\"a\":\"é \u202eb\u0085\"}\n":   `{"a":"é \u202eb\u0085"}` + "\n",
		"[\"\u2028\U000e0001\u00a0😀\"]\n": `["\u2028\udb40\udc01\u00a0😀"]` + "\n",
		"{}\n":                            "{}\n",
	} {
		got := EscapeJSON([]byte(given))
		var before, after any
		if string(got) != want || json.Unmarshal([]byte(given), &before) != nil || json.Unmarshal(got, &after) != nil || !reflect.DeepEqual(before, after) {
			t.Errorf("%q is written as %s", given, got)
		}
	}
}

// TestScreen: on a terminal each picture is drawn over the one before, and no line is longer than the screen.
func TestScreen(t *testing.T) {
	c := newConsole(t)
	ctx, stop := context.WithTimeout(t.Context(), 1500*time.Millisecond)
	defer stop()
	if err := c.run(ctx, "tasks watch", true); err != nil {
		t.Fatal(err)
	}
	screens := strings.Split(c.out.String(), topOfScreen)[1:]
	if len(screens) < 2 {
		t.Fatalf("%d screens", len(screens))
	}
	if !strings.Contains(screens[1], "2 tasks · 1 working · 1 input_required · 1 replica") {
		t.Errorf("the screen is %q", screens[1])
	}
	for line := range strings.SplitSeq(screens[1], "\r\n") {
		if n := len([]rune(strings.NewReplacer(clearLine, "", clearBelow, "").Replace(line))); n > 60 {
			t.Errorf("%q has %d characters", line, n)
		}
	}
}
