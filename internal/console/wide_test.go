package console

import (
	"context"
	"flag"
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"taskgate/gateway/operator"
	"taskgate/shim"
)

var everyPicture = flag.String("every", "", "folder to write a picture of every page to: with few and many tasks, on phones and desktops, light and dark")

// Names that clients, servers and operators choose: without a place to break, against the direction of writing, as
// markup, and of many lines.
var hostileNames = []string{
	strings.Repeat("a_tool_without_any_end_", 12), "\u202etxt.exe\u202d right to left", hostile, "many\nlines\n\n\nof a\ttool", strings.Repeat("語", 300), "👩‍👩‍👧‍👦" + strings.Repeat("é́́́", 80),
}

// crowd is a deployment with n tasks whose names are hostile.
type crowd struct{ *busy }

func newCrowd(n int) crowd {
	b := newBusy()
	name := func(i int) string { return hostileNames[i%len(hostileNames)] }
	all := b.tasks
	b.tasks = nil
	for i := range n {
		t := all[i%len(all)]
		t.ID, t.Tool, t.Principal, t.Message = fmt.Sprintf("%08x-30a9-4a22-a685-%012x", i*7919, i), name(i), name(i/3), name(i/5)
		if i < 3 { // a few are certain to run, to wait and to have failed
			t.Status = []string{"working", "input_required", "tool_error"}[i]
		}
		b.tasks = append(b.tasks, t)
	}
	if n == 0 { // nor has anything ended
		for i := range b.stats.Minutes {
			b.stats.Minutes[i].Counts = operator.Counts{}
		}
	}
	return crowd{b}
}

func (c crowd) Upstreams(ctx context.Context) (operator.Upstreams, error) {
	all, err := c.busy.Upstreams(ctx)
	long := strings.Repeat("upstream-", 7)[:63] // as long as the name of one may be
	u := operator.Upstream{Name: long, Transport: "stdio", Era: "legacy", Replicas: []operator.Reach{{Replica: "b01d7e5544", Error: hostileNames[0]}, {Replica: "9f3a2c71d0"}},
		Tools: []operator.Tool{}, Policies: []operator.Policy{{Tools: hostileNames[0] + "*", Tasks: "required", Grace: "100ms", TTL: "720h0m0s", Timeout: "24h0m0s", Concurrency: 1000, Recover: "retry", Rerun: true}}}
	for i, name := range hostileNames {
		at := c.now.Add(-time.Duration(i) * time.Hour)
		u.Tools = append(u.Tools, operator.Tool{Tool: name, Running: 12345, InputRequired: i, Queued: 3, Oldest: &at})
		u.Paused = append(u.Paused, operator.Pause{Upstream: long, Tool: name, Operator: name, Since: at})
	}
	for i := range all.Upstreams {
		if all.Upstreams[i].Tools == nil {
			all.Upstreams[i].Tools = []operator.Tool{}
		}
	}
	if len(c.tasks) > 0 {
		all.Upstreams = append(all.Upstreams, u)
	}
	return all, err
}

func (c crowd) Tasks(ctx context.Context, q shim.Query) (operator.Tasks, error) {
	page, err := c.busy.Tasks(ctx, q)
	if page.Tasks == nil {
		page.Tasks = []operator.Task{}
	}
	return page, err
}

func (c crowd) Questions(ctx context.Context, content bool) (operator.Questions, error) {
	all, err := c.busy.Questions(ctx, content)
	if all.Questions == nil {
		all.Questions = []operator.Question{}
	}
	return all, err
}

func (c crowd) Task(ctx context.Context, id string, content bool) (operator.TaskDetail, error) {
	d, err := c.busy.Task(ctx, id, content)
	d.Arguments = []byte(`{"text":"` + strings.Repeat("without_a_place_to_break_", 60) + `"}`)
	d.Events = append(d.Events, operator.Event{At: c.now, Kind: "cancelled", Detail: "operator " + hostileNames[0]})
	d.Asked = []operator.Asked{{Key: hostileNames[0], Method: "elicitation/create", State: "open", Params: d.Arguments}}
	return d, err
}

func (c crowd) Clients(context.Context) (all operator.Clients, err error) {
	all.Clients = []operator.Client{}
	for i := range min(len(c.tasks), 20) {
		all.Clients = append(all.Clients, operator.Client{
			Principal: hostileNames[i%len(hostileNames)], Names: []string{hostileNames[(i+1)%len(hostileNames)]}, LastMinute: 12345, LastHour: 1234567,
			Methods: map[string]int{"tools/call": 1234567}, Holdings: operator.Holdings{Sessions: 10000, Streams: 10000, Calls: 10000, Tasks: 10000},
		})
	}
	return all, nil
}

// pages are where an operator can be, with what shows that the page is there.
func pages(c crowd) map[string]string {
	all := map[string]string{
		"overview": "#/", "tasks": "#/tasks", "running": "#/tasks?status=working&order=oldest", "questions": "#/questions", "replicas": "#/replicas",
		"upstreams": "#/upstreams", "store": "#/store", "clients": "#/clients",
	}
	for i, name := range []string{"task", "asking", "wrong"} {
		if i < len(c.tasks) {
			all[name] = "#/task/" + c.tasks[i].ID
		}
	}
	return all
}

// TestNoPageIsTooWide: no page is wider than a phone, whatever clients and servers call their things, and however many
// there are. What is wide scrolls by itself.
func TestNoPageIsTooWide(t *testing.T) {
	t.Parallel()
	for _, n := range []int{0, 10, 5000} {
		c := newCrowd(n)
		web := httptest.NewServer(operator.New(operator.Options{Source: c, Method: anybody{}, Content: true}))
		t.Cleanup(web.Close)
		p := newPage(t)
		p.do(chromedp.Navigate(web.URL + "/console/"))
		p.shows("main", "Longest running")
		for name, at := range pages(c) {
			p.eval(fmt.Sprintf("location.hash = %q", at))
			p.holds(`!document.querySelector(".skeleton") && document.querySelector("main").innerText !== ""`)
			for _, width := range []int64{390, 1280} {
				p.resize(width, 844, "light")
				if wide := p.eval(tooWide); wide != "" {
					t.Errorf("%s with %d tasks on %d: %s", name, n, width, wide)
				}
				for _, scheme := range []string{"light", "dark"} {
					p.picture(fmt.Sprintf("%s-%d-%d-%s", name, n, width, scheme), width, scheme)
				}
			}
		}
		p.checkHarmless()
	}
}

// tooWide names what is wider than the window and cannot be scrolled by itself; "" for nothing.
const tooWide = `(() => {
	const width = document.documentElement.clientWidth;
	if (document.documentElement.scrollWidth <= width && document.body.scrollWidth <= width) return "";
	const within = (e) => e && (getComputedStyle(e).overflowX !== "visible" || within(e.parentElement));
	return width + " < " + document.documentElement.scrollWidth + ": " + [...document.querySelectorAll("body *")]
		.filter((e) => e.getBoundingClientRect().right > width + 1 && !within(e.parentElement)).slice(0, 5).map((e) => e.outerHTML.slice(0, 150)).join("\n");
})()`

// picture writes a picture of the page, if pictures are wanted.
func (p *page) picture(name string, width int64, scheme string) {
	p.t.Helper()
	if *everyPicture == "" {
		return
	}
	p.resize(width, 844, scheme)
	if err := os.WriteFile(filepath.Join(*everyPicture, name+".png"), run(p, chromedp.CaptureScreenshot()), 0o644); err != nil {
		p.t.Fatal(err)
	}
}
