package console

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"taskgate/gateway/auth"
	"taskgate/gateway/operator"
	"taskgate/shim"
)

var pictures = flag.String("pictures", "", "folder to write the pictures of the documentation to")

// TestPictures makes the pictures of the documentation ("make screenshots"): the console in front of a deployment that
// is busy, and the same for each run. Without a folder it only looks whether the page shows that.
func TestPictures(t *testing.T) {
	web := httptest.NewServer(operator.New(operator.Options{Source: newBusy(), Method: anybody{}, Content: true}))
	t.Cleanup(web.Close) // after the browser, which reads a stream
	p := newPage(t)
	p.do(chromedp.Navigate(web.URL + "/console/"))
	p.shows("main", "Longest running", "render_video at media", "unknown outcome")
	for _, one := range []struct{ name, scheme, at, shows string }{
		{"console-light", "light", "#/", "Longest running"},
		{"console-dark", "dark", "#/", "Longest running"},
		{"console-task", "light", "#/task/" + taken, "Taken over"},
	} {
		p.resize(1280, 800, one.scheme)
		p.eval(fmt.Sprintf("location.hash = %q", one.at))
		p.shows("main", one.shows)
		p.shows(".live", "Live")
		if *pictures != "" {
			if err := os.WriteFile(filepath.Join(*pictures, one.name+".png"), run(p, chromedp.CaptureScreenshot()), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// anybody lets everybody in.
type anybody struct{}

func (anybody) Identify(*http.Request) (auth.Caller, *auth.Refusal) { return auth.Caller{}, nil }
func (anybody) Recall(*http.Request) string                         { return "" }

// taken is the task that another replica has taken over.
const taken = "5c9e21f4-30a9-4a22-a685-8bff213a9998"

// busy is a deployment with much to do.
type busy struct {
	now   time.Time
	tasks []operator.Task // newest first
	stats operator.Stats
}

func newBusy() *busy {
	b := &busy{now: time.Now().UTC().Truncate(time.Second)}
	r := rand.New(rand.NewPCG(7, 11))
	tools := [][2]string{{"research", "reports"}, {"summarise", "reports"}, {"forecast", "weather"}, {"render_video", "media"}, {"transcribe", "media"}}
	says := []string{"collecting sources", "comparing claims", "frame 1204 of 9000", "writing the report", ""}
	for i := range 300 {
		tool, made := tools[r.IntN(len(tools))], b.now.Add(-time.Duration(r.ExpFloat64()*3000+4)*time.Second)
		task := operator.Task{
			ID: fmt.Sprintf("%08x-30a9-4a22-a685-%012x", r.Uint32(), i), Upstream: tool[1], Tool: tool[0], Principal: []string{"ada", "bob", "carol@example.org"}[r.IntN(3)],
			Replica: []string{"9f3a2c71d0", "b01d7e5544"}[r.IntN(2)], CreatedAt: made, BegunAt: made.Add(-2 * time.Second), UpdatedAt: made.Add(time.Duration(r.Float64() * float64(b.now.Sub(made)))),
		}
		switch n := r.IntN(40); {
		case n < 5:
			task.Status, task.Message = cmp.Or(map[bool]string{true: "queued"}[n == 0], "working"), says[r.IntN(len(says))]
		case n < 7:
			task.Status, task.Questions = "input_required", 1
		case n < 9:
			task.Status, task.Outcome, task.Message = "failed", "failed", "the archive is closed today"
		case n == 9:
			task.Status, task.Outcome, task.Message = "unknown", "unknown", "the replica was lost"
		case n == 10:
			task.Status, task.Outcome = "cancelled", "cancelled"
		default:
			task.Status, task.Outcome, task.ResultSize = "completed", "completed", int64(r.IntN(90000))
		}
		b.tasks = append(b.tasks, task)
	}
	b.tasks = append(b.tasks, operator.Task{
		ID: taken, Upstream: "media", Tool: "render_video", Status: "working", Message: "frame 4211 of 9000", Principal: "ada",
		Replica: "b01d7e5544", CreatedAt: b.now.Add(-3 * time.Hour), BegunAt: b.now.Add(-3 * time.Hour), UpdatedAt: b.now.Add(-4 * time.Second),
	})
	slices.SortFunc(b.tasks, func(x, y operator.Task) int { return y.CreatedAt.Compare(x.CreatedAt) })
	b.stats.Bounds = []float64{0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600}
	for i := range 60 {
		n := int(30 + 20*math.Sin(float64(i)/9) + 8*r.Float64())
		m := operator.Minute{At: b.now.Truncate(time.Minute).Add(time.Duration(i-59) * time.Minute), Counts: operator.Counts{
			Calls: map[string]int{"reply": n, "task": n / 6, "input_required": r.IntN(2), "error": r.IntN(12) / 11}, Made: n / 6,
			Ended: map[string]int{"completed": max(0, n/6-r.IntN(2)), "failed": r.IntN(8) / 7, "cancelled": r.IntN(6) / 5}, Durations: make([]int, 18),
		}}
		if i == 44 {
			m.Ended["unknown"] = 2
		}
		for range n {
			m.Durations[min(17, max(0, int(5+2*r.NormFloat64())))]++
		}
		for range n / 6 {
			m.Durations[min(17, max(0, int(12+2*r.NormFloat64())))]++
		}
		b.stats.Minutes = append(b.stats.Minutes, m)
	}
	return b
}

func (b *busy) Tasks(_ context.Context, q shim.Query) (page operator.Tasks, err error) {
	all := slices.Clone(b.tasks)
	if q.Oldest {
		slices.Reverse(all)
	}
	for _, t := range all {
		switch {
		case len(q.States) > 0 && !slices.Contains(q.States, shim.State(t.Status)):
		case len(page.Tasks) == q.Limit:
			page.Next = "more"
			return page, nil
		default:
			page.Tasks = append(page.Tasks, t)
		}
	}
	return page, nil
}

func (b *busy) Task(_ context.Context, id string, _ bool) (operator.TaskDetail, error) {
	i := slices.IndexFunc(b.tasks, func(t operator.Task) bool { return t.ID == id })
	if i < 0 {
		return operator.TaskDetail{}, shim.ErrNotFound
	}
	d := operator.TaskDetail{Task: b.tasks[i], ContentShown: true, Arguments: []byte(`{"scene":"harbour at dawn","frames":9000}`),
		TraceID: "4bf92f3577b34da6a3ce929d0e0e4736", TraceURL: "http://127.0.0.1/trace"}
	for after, e := range map[time.Duration]operator.Event{
		0: {Kind: "queued"}, 40 * time.Second: {Kind: "sent", Detail: "9f3a2c71d0"}, 70 * time.Second: {Kind: "made", Detail: "9f3a2c71d0"},
		12 * time.Minute: {Kind: "asked", Detail: "elicitation/create"}, 19 * time.Minute: {Kind: "answered"},
		176 * time.Minute: {Kind: "adopted", Detail: "by b01d7e5544, from 9f3a2c71d0"}, 176*time.Minute + time.Second: {Kind: "resumed"},
	} {
		e.At = d.CreatedAt.Add(after)
		d.Events = append(d.Events, e)
	}
	slices.SortFunc(d.Events, func(x, y operator.Event) int { return x.At.Compare(y.At) })
	return d, nil
}

func (b *busy) Totals(_ context.Context, q shim.Query) (operator.Totals, error) {
	all := operator.Totals{Counts: map[string]int{}}
	for _, t := range b.tasks {
		if q.EndedAfter.IsZero() || shim.State(t.Status).Ended() && !t.UpdatedAt.Before(q.EndedAfter) {
			all.Counts[t.Status]++
		}
	}
	return all, nil
}

func (b *busy) Store(context.Context) (operator.Store, error) {
	return operator.Store{Kind: "redis", Address: "redis.example:6379", LatencyMs: 0.4, Masters: 1, UsedBytes: 210 << 20, MaxBytes: 1 << 30, Replicas: 2, WaitReplicas: 1}, nil
}

func (b *busy) Rerun(context.Context, string, string) (old, made operator.Task, err error) {
	return old, made, shim.ErrNotFound
}

func (b *busy) Pause(context.Context, string, string, string) (operator.Pause, error) {
	return operator.Pause{}, shim.ErrFinal
}

func (b *busy) Resume(context.Context, string, string) (operator.Pause, error) {
	return operator.Pause{}, shim.ErrFinal
}

func (b *busy) Cancel(context.Context, string, string) (operator.Task, error) {
	return operator.Task{}, shim.ErrFinal
}

func (b *busy) Questions(context.Context, bool) (all operator.Questions, err error) {
	for _, t := range slices.Backward(b.tasks) {
		if t.Status == "input_required" {
			all.Questions = append(all.Questions, operator.Question{Task: t.ID, Upstream: t.Upstream, Tool: t.Tool, Principal: t.Principal, Key: "q", Method: "elicitation/create", Since: t.UpdatedAt})
		}
	}
	return all, nil
}

func (b *busy) Replicas(context.Context) (operator.Replicas, error) {
	since := b.now.Add(-30 * time.Hour)
	return operator.Replicas{Replicas: []operator.Replica{
		{Name: "9f3a2c71d0", SeenAt: b.now.Add(-4 * time.Minute), Host: "gate-0"},
		{Name: "b01d7e5544", Alive: true, SeenAt: b.now, Host: "gate-1", Version: "v1.4.0", Config: "8c1f22d0", Since: &since, Tasks: 31},
	}}, nil
}

func (b *busy) Upstreams(context.Context) (operator.Upstreams, error) {
	var all operator.Upstreams
	for _, name := range []string{"media", "reports", "weather"} {
		u := operator.Upstream{Name: name, Transport: "http", Era: "modern", Reachable: true, Policies: []operator.Policy{{Tools: "*", Tasks: "auto"}}, Replicas: []operator.Reach{{Replica: "b01d7e5544", Reachable: true}}}
		for _, t := range b.tasks {
			if t.Upstream != name || shim.State(t.Status).Ended() {
				continue
			}
			i := slices.IndexFunc(u.Tools, func(one operator.Tool) bool { return one.Tool == t.Tool })
			if i < 0 {
				i, u.Tools = len(u.Tools), append(u.Tools, operator.Tool{Tool: t.Tool})
			}
			switch one := &u.Tools[i]; {
			case t.Status == "queued":
				one.Queued++
				u.Queued++
			case t.Status == "working":
				one.Running++
			default:
				one.InputRequired++
			}
			u.Tools[i].Oldest = &t.CreatedAt // the list ends with the oldest
			u.Calls++
		}
		all.Upstreams = append(all.Upstreams, u)
	}
	return all, nil
}

func (b *busy) Clients(context.Context) (operator.Clients, error) { return operator.Clients{}, nil }

func (b *busy) Stats(context.Context, string) (operator.Stats, error) { return b.stats, nil }

func (b *busy) Changes(ctx context.Context, _ func()) error {
	<-ctx.Done()
	return ctx.Err()
}
