package console

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

// patience is how long the page may take to show something.
const patience = 60 * time.Second

// page is a tab of a browser.
type page struct {
	t   *testing.T
	ctx context.Context

	mu       sync.Mutex
	mistakes []string // what the console of the browser says, and what was asked of other hosts
	expected string   // part of a mistake that belongs to the test
}

// newPage opens an empty tab in a browser with a profile of its own. The test fails for each error that the browser's
// console has at its end.
func newPage(t *testing.T) *page {
	t.Helper()
	program, err := exec.LookPath("chromium")
	if err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal("chromium is missing")
		}
		t.Skip("chromium is missing")
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(program), chromedp.NoSandbox, chromedp.UserDataDir(t.TempDir()), chromedp.DisableGPU,
		chromedp.Flag("disable-component-update", true), chromedp.Flag("disable-domain-reliability", true),
		chromedp.Flag("host-resolver-rules", "MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"), chromedp.Env("TZ=UTC"))
	browser, closeBrowser := chromedp.NewExecAllocator(context.Background(), options...)
	t.Cleanup(closeBrowser)
	ctx, closeTab := chromedp.NewContext(browser)
	t.Cleanup(closeTab)
	p := &page{t: t, ctx: ctx}
	if err := chromedp.Do(ctx, chromedp.Navigate("about:blank")); err != nil { // its context is that of the browser
		t.Fatal(err)
	}
	if err := chromedp.Listen(ctx, p.hear); err != nil {
		t.Fatal(err)
	}
	p.do(call(runtime.Enable, cdp.Empty{}), call(log.Enable, cdp.Empty{}), call(network.Enable, network.EnableParams{}))
	t.Cleanup(p.checkMistakes)
	return p
}

// call is a command of the browser's protocol as an action.
func call[P, R any](command cdp.Command[P, R], params P) chromedp.Action[chromedp.Void] {
	return chromedp.Func(func(ctx context.Context, _ *chromedp.Target) error {
		_, err := chromedp.Call(ctx, command, params)
		return err
	})
}

// hear keeps what is a mistake of the page.
func (p *page) hear(event any) {
	mistake := ""
	switch e := event.(type) {
	case *runtime.EventExceptionThrown:
		mistake = e.ExceptionDetails.Text
		if e.ExceptionDetails.Exception != nil {
			mistake += " " + e.ExceptionDetails.Exception.Description
		}
	case *runtime.EventConsoleAPICalled:
		if e.Type == runtime.ConsoleAPICalledTypeError || e.Type == runtime.ConsoleAPICalledTypeWarning {
			mistake = fmt.Sprintf("console.%s %s", e.Type, e.Args[0].Value)
		}
	case *log.EventEntryAdded:
		if e.Entry.Level == log.EntryLevelError || e.Entry.Level == log.EntryLevelWarning {
			mistake = fmt.Sprintf("%s: %s %s", e.Entry.Level, e.Entry.Text, e.Entry.URL)
		}
	case *network.EventRequestWillBeSent:
		if !strings.HasPrefix(e.Request.URL, "http://127.0.0.1:") && !strings.HasPrefix(e.Request.URL, "data:") {
			mistake = "a request to " + e.Request.URL
		}
	}
	if mistake == "" || strings.Contains(mistake, "status of 503") { // on a busy machine the store is late
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.expected == "" || !strings.Contains(mistake, p.expected) {
		p.mistakes = append(p.mistakes, mistake)
	}
}

// expect lets the console have errors with this part from now on.
func (p *page) expect(part string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.expected = part
}

func (p *page) checkMistakes() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, mistake := range p.mistakes {
		p.t.Errorf("the browser says: %s", mistake)
	}
}

// do does something in the tab.
func (p *page) do(actions ...chromedp.Action[chromedp.Void]) {
	p.t.Helper()
	run(p, chromedp.Steps(actions...))
}

// run does something in the tab and returns what comes of it.
func run[T any](p *page, action chromedp.Action[T]) T {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	found, err := chromedp.Run(ctx, action)
	if err != nil {
		p.t.Fatal(err)
	}
	return found
}

// eval is the string that a script returns.
func (p *page) eval(script string) string {
	p.t.Helper()
	return run(p, chromedp.Evaluate[string]("Promise.resolve("+script+").then(String)", chromedp.EvalAwaitPromise))
}

// text is what an element shows; it is empty where there is none.
func (p *page) text(selector string) string {
	p.t.Helper()
	return p.eval(fmt.Sprintf("document.querySelector(%q)?.innerText ?? ''", selector))
}

// shows waits until an element shows all of these texts.
func (p *page) shows(selector string, texts ...string) {
	p.t.Helper()
	for _, text := range texts {
		p.holds(fmt.Sprintf("document.querySelector(%q)?.innerText.includes(%q)", selector, text))
	}
}

// holds waits until a condition holds in the page.
func (p *page) holds(script string) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	if _, err := chromedp.Run(ctx, chromedp.Poll[bool]("!!("+script+")", chromedp.WithPollingInterval(50*time.Millisecond))); err != nil {
		p.t.Fatalf("%s: %v; the page is\n%s", script, err, p.text("body"))
	}
}

// resize makes the window so large, in a light or dark scheme.
func (p *page) resize(width, height int64, scheme string) {
	p.t.Helper()
	p.do(call(emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{Width: width, Height: height, DeviceScaleFactor: 1, Mobile: width < 500}),
		call(emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}}))
}
