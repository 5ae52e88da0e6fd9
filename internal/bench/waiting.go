package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"taskgate/internal/mcp"
	"taskgate/internal/work"
)

// releaseEvery is the time between two completions: a hundred each second.
const releaseEvery = 10 * time.Millisecond

// Kinds of waiters, in the order of the table.
const (
	waitProxy  = "the call itself, at the bare proxy"
	waitResult = "tasks/result, 2025-11-25"
	waitListen = "subscriptions/listen, 2026-07-28"
)

var waitKinds = []string{waitProxy, waitResult, waitListen}

// waiter is a client that makes one task after the other at a gateway, and waits at another one
// for its end.
type waiter struct {
	st      *stage
	kind    string
	session string // of a legacy client
	times   []time.Duration
}

// measureWaiting has calls end while clients wait, and measures how long each took from the
// server's answer to its client.
func measureWaiting(ctx context.Context, s settings) (string, error) {
	if !s.wants("waiting elsewhere") {
		return "", nil
	}
	if err := raiseFiles(2 * s.waiters); err != nil {
		return "", err
	}
	fmt.Fprintf(os.Stderr, "%d clients waiting\n", s.waiters)
	st, err := newStage(ctx, s, "modern")
	if err != nil {
		return "", err
	}
	defer st.close()
	times, err := st.wait(ctx, s)
	if err != nil {
		return "", st.explain(err)
	}
	return waitingTable(times)
}

// wait keeps s.waiters clients waiting, as many of each kind, while calls end.
func (st *stage) wait(ctx context.Context, s settings) (map[string][]time.Duration, error) {
	ctx, stop := context.WithCancelCause(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer stop(nil)
	waiters := make([]*waiter, s.waiters)
	for i := range waiters {
		waiters[i] = &waiter{st: st, kind: waitKinds[i%len(waitKinds)]}
		running.Go(func() {
			if err := waiters[i].run(ctx); err != nil {
				stop(err)
			}
		})
	}
	if err := st.waitHeld(ctx, s.waiters); err != nil {
		return nil, errors.Join(err, context.Cause(ctx))
	}
	if work.Pause(ctx, settled) != nil {
		return nil, context.Cause(ctx)
	}
	if _, err := st.held(ctx, "?every="+releaseEvery.String()); err != nil {
		return nil, err
	}
	if work.Pause(ctx, max(15*s.length, 2*time.Second)) != nil {
		return nil, context.Cause(ctx)
	}
	stop(nil)
	running.Wait()
	times := map[string][]time.Duration{}
	for _, w := range waiters {
		times[w.kind] = append(times[w.kind], w.times...)
	}
	return times, nil
}

// run waits for tasks until ctx ends.
func (w *waiter) run(ctx context.Context) error {
	if w.kind == waitResult {
		if err := w.beginSession(ctx); err != nil {
			return fmt.Errorf("begin a session: %w", err)
		}
	}
	for {
		d, err := w.once(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return fmt.Errorf("%s: %w", w.kind, err)
		}
		w.times = append(w.times, d)
	}
}

// once waits for one task, or call, and returns how long its result was on its way.
func (w *waiter) once(ctx context.Context) (time.Duration, error) {
	hold := call(w.st.proxy, toolHold, false, "")
	if w.kind != waitProxy {
		made := call(w.st.gateway, toolHold, true, handled)
		answer, err := exchange(ctx, made, (*httpConn).do)
		if err != nil {
			return 0, err
		}
		id, err := taskID(answer)
		if err != nil {
			return 0, err
		}
		hold = load{addr: w.st.second, request: w.request(id)}
	}
	return exchange(ctx, hold, func(c *httpConn) (time.Duration, error) {
		if _, err := c.Write(c.request); err != nil {
			return 0, err
		}
		return c.readRelease()
	})
}

// exchange does something on a connection of its own, which ends with ctx.
func exchange[T any](ctx context.Context, l load, do func(*httpConn) (T, error)) (T, error) {
	c, err := dialHTTP(l.addr, l.request)
	if err != nil {
		var none T
		return none, err
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	return do(c)
}

// request asks for the end of a task, in the words of the kind.
func (w *waiter) request(id string) []byte {
	if w.kind == waitListen {
		return request(w.st.second, mcp.MethodListen, "", `"notifications":{"taskIds":["`+id+`"]}`, true)
	}
	body := `{"jsonrpc":"2.0","id":1,"method":"` + mcp.MethodTasksResult + `","params":{"taskId":"` + id + `"}}`
	return fmt.Appendf(nil, "POST /mcp HTTP/1.1\r\nHost: %s\r\nContent-Type: %s\r\nAccept: %s\r\n%s: %s\r\n%s: %s\r\nContent-Length: %d\r\n\r\n%s",
		w.st.second, mcp.TypeJSON, mcp.TypeAccept, mcp.HeaderProtocolVersion, mcp.Version20251125, mcp.HeaderSession, w.session, len(body), body)
}

// beginSession begins a legacy client session at the second gateway.
func (w *waiter) beginSession(ctx context.Context) error {
	for _, body := range []string{
		`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"bench","version":"1"}}}`,
		`{"jsonrpc":"2.0","method":"notifications/initialized"}`,
	} {
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+w.st.second+"/mcp", strings.NewReader(body))
		if err != nil {
			return err
		}
		r.Header.Set("Content-Type", mcp.TypeJSON)
		r.Header.Set("Accept", mcp.TypeAccept)
		if w.session != "" {
			r.Header.Set(mcp.HeaderSession, w.session)
			r.Header.Set(mcp.HeaderProtocolVersion, mcp.Version20251125)
		}
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			return err
		}
		_, err = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		if err != nil || resp.StatusCode/100 != 2 {
			return errors.Join(err, errors.New(resp.Status))
		}
		if w.session == "" {
			w.session = resp.Header.Get(mcp.HeaderSession)
		}
	}
	return nil
}

// taskID finds the id of the task in an answer.
func taskID(body []byte) (string, error) {
	_, rest, _ := bytes.Cut(body, []byte(`"taskId":"`))
	id, _, ok := bytes.Cut(rest, []byte(`"`))
	if !ok {
		return "", fmt.Errorf("no task was made: %.300q", body)
	}
	return string(id), nil
}

// waitingTable is a row for each kind.
func waitingTable(times map[string][]time.Duration) (string, error) {
	var b strings.Builder
	b.WriteString("\n### Waiting elsewhere, from the server's answer to the client\n\n| waiting by | completions | p50 | p99 | longest | p50 × bare proxy |\n|---|---:|---:|---:|---:|---:|\n")
	var base time.Duration
	for _, kind := range waitKinds {
		list := times[kind]
		if len(list) == 0 {
			return "", fmt.Errorf("%s: nobody heard of an end", kind)
		}
		slices.Sort(list)
		if p50 := list[len(list)/2]; kind == waitProxy {
			base = p50
		}
		fmt.Fprintf(&b, "| %s | %d | %s | %s | %s | %.1f |\n", kind, len(list), short(list[len(list)/2]),
			short(list[len(list)*99/100]), short(list[len(list)-1]), float64(list[len(list)/2])/float64(base))
	}
	return b.String(), nil
}
