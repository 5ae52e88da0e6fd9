package console

import (
	"fmt"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"taskgate/internal/programtest"
)

// visit goes to a view by its link.
func (p *page) visit(name string) {
	p.t.Helper()
	p.eval(fmt.Sprintf(`[...document.querySelectorAll("nav a")].find((a) => a.innerText.startsWith(%q)).click()`, name))
	p.holds(`!document.querySelector(".skeleton")`)
}

// open signs in at the console of a replica.
func (p *page) open(r *replica) {
	p.t.Helper()
	p.do(chromedp.Navigate("http://" + r.admin + "/console/#token=" + operatorKey))
	p.shows("main", "Longest running")
}

// click clicks the first element that says so.
func (p *page) click(selector, text string) {
	p.t.Helper()
	p.eval(fmt.Sprintf(`[...document.querySelectorAll(%q)].find((e) => e.innerText === %q).click()`, selector, text))
}

// press presses a key.
func (p *page) press(keys ...string) {
	p.t.Helper()
	for _, key := range keys {
		p.do(chromedp.KeyEvent(key))
	}
}

// focused is what the element says that has the focus.
func (p *page) focused() string { return p.eval(`document.activeElement.innerText`) }

// checkHarmless looks whether something that a server said has become markup, or has run.
func (p *page) checkHarmless() {
	p.t.Helper()
	if p.eval(`window.harmed`) != "undefined" || p.eval(`document.querySelectorAll("main img, main script, dialog img").length`) != "0" {
		p.t.Error("what a server said has become part of the page")
	}
}

// TestSignIn: nothing is shown without a key, and the page says what is wrong with one.
func TestSignIn(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	r := w.replicas[0]
	p := newPage(t)
	p.expect("401")
	p.do(chromedp.Navigate("http://" + r.admin + "/console/"))
	p.shows("main", "Sign in", "admin_auth")
	p.checkAccess(axe(t), "the form")
	p.press("wrong", kb.Enter)
	p.shows(`[role="alert"]`, "key")
	p.press(operatorKey, kb.Enter)
	p.shows("main", "Longest running")
	p.shows(".live", "Live")
	p.do(chromedp.Reload())
	p.shows("main", "Longest running")
}

// TestTask: a task appears by itself, progresses, ends, and nothing of what its server says is taken for markup.
func TestTask(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	here, there, axe := w.replicas[0], w.replicas[1], axe(t)
	p := newPage(t)
	p.open(here)
	p.shows("main", "No task runs")
	p.checkAccess(axe, "an empty overview")
	task := there.call(t, adaKey, "research", map[string]any{"topic": hostile})
	p.shows("main", "research at reports", "reading "+hostile, "ada")
	p.checkAccess(axe, "the overview")
	p.eval(`document.querySelector("main a.mono").click()`)
	p.shows("main", task.ID, "Task made", "Sent to the server", "Running", "<img")
	p.checkAccess(axe, "a task")
	w.goOn <- struct{}{}
	p.shows("main", "Ended", "Completed", "the report")
	p.visit("Tasks")
	p.shows("main table", "research at reports", "Completed")
	p.checkAccess(axe, "the tasks")
	p.visit("Upstreams")
	p.shows("main", "reports", "legacy", "Reachable")
	p.checkAccess(axe, "the upstreams")
	p.visit("Store")
	p.shows("main", "Reachable", "redis", "MiB, without a limit", "Replicas that confirm a write")
	p.checkAccess(axe, "the store")
	p.eval(`location.hash = "#/constructor"`) // what every object has is no page
	p.holds(`document.title.startsWith("Overview")`)
	p.visit("Tasks")
	p.shows("main table", "research at reports")
	p.checkHarmless()
}

// TestQuestion: a question is shown with who has to answer it, and its task is cancelled without a mouse.
func TestQuestion(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	here, there, axe := w.replicas[0], w.replicas[1], axe(t)
	p := newPage(t)
	p.open(here)
	task := there.call(t, bobKey, "book", map[string]any{})
	p.shows("#nav .badge", "1")
	p.visit("Questions")
	p.shows("main table", "bob", "book at reports", "the user", "Which archive? "+hostile)
	p.checkAccess(axe, "the questions")
	p.eval(`document.querySelector("main a.mono").focus()`)
	p.press(kb.Enter)
	p.shows("main", "The server asks", "Waits for the client's answer", "Which archive?")
	for p.focused() != "Cancel…" {
		p.press(kb.Tab)
	}
	p.press(kb.Enter)
	p.shows("dialog[open]", "Cancel this task?", "bob")
	p.checkAccess(axe, "the confirmation")
	if found := p.focused(); found != "Go back" {
		t.Errorf("the focus is on %q", found)
	}
	p.press(kb.Escape)
	p.holds(`!document.querySelector("dialog[open]")`)
	if found := p.focused(); found != "Cancel…" {
		t.Errorf("the focus is on %q then", found)
	}
	there.waitTask(t, bobKey, task.ID, "input_required")
	p.press(kb.Enter, kb.Tab, kb.Enter)
	p.shows(".head", "Cancelled")
	p.shows("main", "cancelled by an operator")
	p.holds(`!document.querySelector("dialog[open]")`)
	there.waitTask(t, bobKey, task.ID, "cancelled")
	p.checkHarmless()
}

// TestPause: an operator pauses a tool and has it go on, and the console says so wherever the tool is shown.
func TestPause(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	here, there, axe := w.replicas[0], w.replicas[1], axe(t)
	p := newPage(t)
	p.open(here)
	task := there.call(t, adaKey, "research", map[string]any{})
	p.visit("Upstreams")
	p.shows("main", "research", "Pause…")
	p.eval(`document.querySelector('[aria-label="Pause research at reports"]').click()`)
	p.shows("dialog[open]", "Pause research?", "What runs goes on")
	p.checkAccess(axe, "the question")
	p.click("dialog button", "Pause")
	p.holds(`document.querySelector('[aria-label="Resume research at reports"]')`)
	p.shows("#nav .badge", "1 paused")
	p.checkAccess(axe, "a paused tool")
	programtest.Until(t, "calls are refused at the other replica", patience, func() bool {
		_, err := there.client(adaKey).Do(t.Context(), "tools/call", map[string]any{"name": "research", "arguments": map[string]any{}})
		return err != nil && strings.Contains(err.Error(), "is paused by its operator")
	})
	p.eval(`document.querySelector('[aria-label="Pause reports"]').click()`)
	p.click("dialog button", "Pause")
	p.shows("main", "by ops", "new calls are refused as busy")
	p.visit("Overview")
	p.shows("main", "Upstream reports is paused", "Tool research at reports is paused", "by ops")
	p.checkAccess(axe, "the overview")
	p.visit("Tasks")
	p.shows("main table .tag.paused", "paused")
	p.eval(`location.hash = "#/task/` + task.ID + `"`)
	p.shows(".head .tag.paused", "paused")
	p.visit("Upstreams")
	p.eval(`document.querySelector('[aria-label="Resume reports"]').click()`)
	p.click("dialog button", "Resume")
	p.holds(`document.querySelector('[aria-label="Pause reports"]')`)
	p.eval(`document.querySelector('[aria-label="Resume research at reports"]').click()`)
	p.click("dialog button", "Resume")
	p.holds(`!document.querySelector("#nav .badge")`)
	w.goOn <- struct{}{}
	there.waitTask(t, adaKey, task.ID, "completed")
}

// TestCancelAll: an operator stops all that one principal runs, and nothing of others.
func TestCancelAll(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	r := w.replicas[0]
	p := newPage(t)
	p.open(r)
	others := r.call(t, adaKey, "research", map[string]any{})
	var all []string
	for range 3 {
		all = append(all, r.call(t, bobKey, "research", map[string]any{}).ID)
	}
	p.visit("Tasks")
	p.holds(`document.querySelectorAll("tbody tr").length === 4`)
	p.do(chromedp.SendKeys(`input[placeholder="Anybody"]`, "bob"+kb.Enter))
	p.holds(`document.querySelectorAll("tbody tr").length === 3`)
	p.eval(`document.querySelector(".head button.danger").click()`)
	p.shows("dialog[open]", "Cancel 3 tasks?", "3 of research; for bob")
	if text := p.eval(`document.querySelector("dialog").innerText`); strings.Contains(text, "undefined") {
		t.Errorf("the dialog says %q", text)
	}
	p.eval(`document.querySelector("dialog button.danger").click()`)
	p.shows("dialog[open]", "3 tasks cancelled.")
	p.press(kb.Enter)
	for _, id := range all {
		r.waitTask(t, bobKey, id, "cancelled")
	}
	r.waitTask(t, adaKey, others.ID, "working")
	p.holds(`document.querySelectorAll("tbody .status.cancelled").length === 3`)
}

// TestReplicaDies: the page of another replica says so, and a task's timeline has who took it over. When that one dies,
// too, the page says that it cannot reach it, and shows what it has.
func TestReplicaDies(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	here, there, axe := w.replicas[0], w.replicas[1], axe(t)
	p := newPage(t)
	p.open(here)
	there.call(t, adaKey, "research", map[string]any{})
	p.shows("main", "research at reports")
	p.visit("Replicas")
	p.holds(`document.querySelectorAll("tbody .status.alive").length === 2`)
	p.visit("Overview")
	there.Kill()
	p.shows(`[aria-label="Needs attention"]`, "is gone")
	p.visit("Replicas")
	p.shows("main", "Gone", "1 alive, 1 gone")
	p.shows("#nav .badge", "1 gone")
	p.checkAccess(axe, "the replicas")
	p.visit("Tasks")
	p.eval(`document.querySelector("main a.mono").click()`)
	p.shows(".timeline", "Taken over")
	p.expect("ERR_")
	here.Kill()
	p.shows(".live", "does not answer")
	p.shows(".timeline", "Taken over")
}

// TestFailures: a number on the overview leads to what it counts, and the numbers stand beside the filters.
func TestFailures(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	r := w.replicas[0]
	p := newPage(t)
	p.open(r)
	for range 3 {
		r.waitTask(t, adaKey, r.call(t, adaKey, longTool, map[string]any{}).ID, "completed")
	}
	r.waitTask(t, adaKey, r.call(t, adaKey, "nothing", map[string]any{}).ID, "failed")
	running := r.call(t, bobKey, "research", map[string]any{})
	p.do(chromedp.Reload())
	p.holds(`[...document.querySelectorAll(".figures a")].some((a) => a.innerText.startsWith("Failed\n4\n"))`)
	p.eval(`[...document.querySelectorAll(".figures a")].find((a) => a.innerText.startsWith("Failed")).click()`)
	p.holds(`document.querySelectorAll("tbody tr").length === 4`)
	p.shows("main table", "Tool error", "Failed")
	p.shows(".chips", "Failed 4", "Completed 0")
	p.holds(`[...document.querySelectorAll("bdi.foreign")].some((name) => name.title.length >= 100 && name.offsetWidth < 400)`)
	p.visit("Tasks")
	p.shows(".chips", "All 5", "Open 1", "Running 1", "Failed 4")
	p.eval(`[...document.querySelectorAll(".chips button")].find((b) => b.innerText.startsWith("Open")).click()`)
	p.holds(`document.querySelectorAll("tbody tr").length === 1`)
	p.shows("main table", running.ID[:8], "Running")
	p.checkAccess(axe(t), "the filters")
	p.eval(`document.getElementById("zone").click()`)
	p.shows("#zone", "UTC")
	p.holds(`(() => { const t = document.querySelector("tbody time"); return t.textContent.endsWith(t.dateTime.slice(11, 19)); })()`)
	p.eval(`document.querySelector("tbody a.mono").click()`)
	p.shows("main", "Timeline", "JSON")
	p.eval(`(window.saved = "", URL.createObjectURL = (blob) => { blob.text().then((t) => { window.saved = t; }); return "data:,"; }, "")`)
	p.eval(`[...document.querySelectorAll("main button")].find((b) => b.innerText === "JSON").click()`)
	p.holds(`window.saved.includes("begun_at") && window.saved.includes("` + running.ID + `")`)
	p.checkHarmless()
}

// TestPhone: at the width of a phone no view is wider than the screen.
func TestPhone(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	p := newPage(t)
	p.open(w.replicas[0])
	w.replicas[0].call(t, adaKey, "book", map[string]any{"topic": hostile})
	p.shows("main", "book at reports")
	p.resize(360, 740, "dark")
	for _, name := range []string{"Overview", "Tasks", "Questions", "Unknown", "Replicas", "Upstreams", "Clients"} {
		p.visit(name)
		if wide := p.eval(`document.documentElement.scrollWidth`); wide != "360" {
			t.Errorf("%s is %s wide", name, wide)
		}
	}
}

// TestRunAgain: a task that runs shows its arguments, and a failed call runs again as another task, each of which leads to
// the other.
func TestRunAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	r := w.replicas[0]
	p := newPage(t)
	p.open(r)
	runs := r.call(t, bobKey, "research", map[string]any{"about": hostile})
	p.eval(fmt.Sprintf("location.hash = '#/task/%s'", runs.ID))
	p.shows("main .content", "Arguments", `"about"`, "<img")
	failed := r.call(t, adaKey, "missing", map[string]any{"about": hostile})
	r.waitTask(t, adaKey, failed.ID, "failed")
	p.eval(fmt.Sprintf("location.hash = '#/task/%s'", failed.ID))
	p.shows(".head", "Failed", "Run again…")
	p.click(".head button", "Run again…")
	p.shows("dialog[open]", "Run this call again?", "ada", "missing at reports")
	p.checkAccess(axe(t), "the confirmation")
	p.click("dialog[open] button", "Run it again")
	p.shows("dialog[open]", "It runs again as")
	p.click("dialog[open] button", "Close")
	p.shows("main .facts", "Run again as")
	p.holds(`![...document.querySelectorAll(".head button")].some((b) => b.textContent.startsWith("Run again"))`)
	p.eval(`[...document.querySelectorAll(".facts a.mono")].at(-1).click()`)
	p.shows("main", "Run again by an operator", "operator ops", "Runs again", failed.ID[:8])
	p.checkHarmless()
}
