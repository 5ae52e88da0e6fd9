package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"taskgate/gateway/config"
	"taskgate/internal/wiretest"
	"taskgate/shim/shimtest"
)

// window is a process of "taskgate stdio", as its client has it.
type window struct {
	t    *testing.T
	cmd  *exec.Cmd
	in   io.WriteCloser
	said chan string
	log  *logged
	id   int
}

// openWindow starts a process with a folder.
func openWindow(t *testing.T, folder, server string) *window {
	t.Helper()
	w := &window{t: t, cmd: exec.Command("taskgate", "stdio", "--store", "file:"+folder, "--grace", "1ms", "--upstream", server), said: make(chan string, 100), log: &logged{}}
	w.cmd.Stderr = w.log
	var err error
	w.in, err = w.cmd.StdinPipe()
	must(t, err)
	out, err := w.cmd.StdoutPipe()
	must(t, err)
	must(t, w.cmd.Start())
	go func() {
		defer close(w.said)
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			w.said <- lines.Text()
		}
	}()
	t.Cleanup(w.kill)
	w.ask("server/discover", "") // it has its folder then
	return w
}

// kill ends the process as a crash does.
func (w *window) kill() {
	_ = w.cmd.Process.Kill() // it may have ended
	for range w.said {
	}
	_ = w.cmd.Wait()
}

// leave ends the process as its client does.
func (w *window) leave() {
	must(w.t, w.in.Close())
	for range w.said {
	}
	if err := w.cmd.Wait(); err != nil {
		w.t.Errorf("the process ends with %v\n%s", err, w.log)
	}
}

// send sends a request. params end with a comma.
func (w *window) send(method, params string) (id int) {
	w.t.Helper()
	w.id++
	_, err := fmt.Fprintf(w.in, `{"jsonrpc":"2.0","id":%d,"method":%q,"params":{%s"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28",`+
		`"io.modelcontextprotocol/clientCapabilities":{"extensions":{"io.modelcontextprotocol/tasks":{}}}}}}`+"\n", w.id, method, params)
	must(w.t, err)
	return w.id
}

// ask sends a request and awaits its answer.
func (w *window) ask(method, params string) string {
	w.t.Helper()
	return w.await(fmt.Sprintf(`"id":%d,`, w.send(method, params)))
}

// await returns the next message with a text.
func (w *window) await(text string) string {
	w.t.Helper()
	for {
		select {
		case line, ok := <-w.said:
			if !ok {
				w.t.Fatalf("the process has ended before %s\n%s", text, w.log)
			}
			if strings.Contains(line, text) {
				return line
			}
		case <-time.After(patience):
			w.t.Fatalf("no %s\n%s", text, w.log)
		}
	}
}

// call calls a tool, and returns the id of its task.
func (w *window) call(tool string) (task string) {
	w.t.Helper()
	answer := w.ask("tools/call", `"name":"`+tool+`","arguments":{},`)
	_, task, ok := strings.Cut(answer, `"taskId":"`)
	if !ok {
		w.t.Fatalf("no task: %s\n%s", answer, w.log)
	}
	task, _, _ = strings.Cut(task, `"`)
	return task
}

// wantTask polls until a task is shown with these texts.
func (w *window) wantTask(task string, texts ...string) {
	w.t.Helper()
	last := ""
	defer func() {
		if w.t.Failed() {
			w.t.Logf("the last answer: %s\n%s", last, w.log)
		}
	}()
	shimtest.Eventually(w.t, func() bool {
		last = w.ask("tasks/get", `"taskId":"`+task+`",`)
		for _, text := range texts {
			if !strings.Contains(last, text) {
				return false
			}
		}
		return true
	})
}

// held is what the client of another window is told of a task of this one.
func (w *window) held() string {
	return "held by another window, process " + strconv.Itoa(w.cmd.Process.Pid)
}

// TestTwoWindows: a second window has a folder of its own below that of the first. Each tells of the other's tasks that
// it holds them, and serves them once the other has ended, in whatever way.
func TestTwoWindows(t *testing.T) {
	startsProcesses(t)
	server, called, letGo := named(t, "server")
	folder := filepath.Join(t.TempDir(), "tasks")
	one := openWindow(t, folder, server)
	first := one.call("slow")
	wiretest.Await(t, called, "a call")

	two := openWindow(t, folder, server)
	second := two.call("slow")
	wiretest.Await(t, called, "a call")
	two.wantTask(first, `"status":"working"`, one.held())
	one.wantTask(second, `"status":"working"`, two.held())
	if text := two.ask("tasks/cancel", `"taskId":"`+first+`",`); !strings.Contains(text, `"error"`) || !strings.Contains(text, one.held()) {
		t.Errorf("the task of another window is cancelled: %s", text)
	}
	if text := two.ask("tasks/get", `"taskId":"`+strings.Repeat("0", 8)+first[8:]+`",`); !strings.Contains(text, "-32602") {
		t.Errorf("an id that no window has given out: %s", text)
	}

	two.kill()
	one.wantTask(second, `"status":"failed"`) // as after a restart: the call went with its process
	three := openWindow(t, folder, server)
	if log := three.log.String(); !strings.Contains(log, filepath.Join(folder, "3")) {
		t.Errorf("the third window, while the first has two folders, logs\n%s", log)
	}
	three.wantTask(second, one.held())

	listen := three.send("subscriptions/listen", `"notifications":{"taskIds":["`+first+`"]},`)
	three.await(one.held())
	letGo()
	one.wantTask(first, `"status":"completed"`)
	one.leave()
	if line := three.await(`"status":"completed"`); !strings.Contains(line, first) {
		t.Errorf("the stream tells %s", line)
	}
	three.await(fmt.Sprintf(`"id":%d,`, listen)) // the stream ends with its last task
	three.wantTask(second, `"status":"failed"`)

	four := openWindow(t, folder, server)
	if log := four.log.String(); !strings.Contains(log, filepath.Join(folder, "4")) {
		t.Errorf("while the third has all others, the fourth logs\n%s", log)
	}
	three.leave()
	four.wantTask(first, `"status":"completed"`, "server ")
	four.leave()
	five := openWindow(t, folder, server)
	if log := five.log.String(); strings.Contains(log, "another window") {
		t.Errorf("the only window logs\n%s", log)
	}
	five.wantTask(first, `"status":"completed"`)
	five.leave()
}

// TestWindowsAreBounded: the number of folders has an end, which the error names.
func TestWindowsAreBounded(t *testing.T) {
	c := config.FromFlags("http://127.0.0.1:1")
	folder := t.TempDir()
	for range maxWindows {
		s := newServer(c, io.Discard)
		store, err := newWindows(s, folder).take(t.Context())
		must(t, err)
		t.Cleanup(func() { must(t, store.Close()) })
	}
	var log bytes.Buffer
	s := newServer(c, &log)
	s.log = slog.New(slog.NewTextHandler(&log, nil))
	if _, err := newWindows(s, folder).take(t.Context()); err == nil || !strings.Contains(err.Error(), "16 windows") {
		t.Errorf("one more window: %v", err)
	}
}
