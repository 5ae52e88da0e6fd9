package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"taskgate/internal/mcp"
)

// This file measures calls that wait for an answer of their client: clients of
// 2026-07-28 without tasks, at a server of 2025 that asks. Each client has its
// InputRequiredResult and is gone; the call stays open at the server (design.md 0.18).

// askTool asks its user and waits for the answer, which never comes.
const askTool = "ask"

// askedIdle is for how long it is looked whether anything goes on.
const askedIdle = 10 * time.Second

// canBeAsked are the capabilities of a client without tasks that can be asked.
const canBeAsked = `{"elicitation":{}}`

// measureAsked parks calls behind questions and writes the report.
func measureAsked(ctx context.Context, out io.Writer, taskgate string, n int) error {
	files, err := raiseFiles()
	if err != nil {
		return fmt.Errorf("limit of open files: %w", err)
	}
	if files < n+spare {
		n = max(files-spare, 0)
		fmt.Fprintf(os.Stderr, "the hard limit of open files is %d: only %d calls are parked; raise it with ulimit -Hn\n", files, n)
	}
	p, err := newParking(ctx, taskgate, "legacy")
	if err != nil {
		return err
	}
	defer p.close()
	defer p.store.Close()
	fmt.Fprintf(out, "\n### Calls parked by a question\n\n| parked | resident | CPU, idle | commands/s, idle |\n|---:|---:|---:|---:|\n")
	for _, n := range []int{0, n / 10, n} {
		fmt.Fprintf(os.Stderr, "%d calls parked by a question\n", n)
		l, err := p.asked(ctx, n)
		if err != nil {
			return fmt.Errorf("%w\n%s", err, p.complaints())
		}
		var commands int64
		for _, c := range l.idle.commands {
			commands += c
		}
		fmt.Fprintf(out, "| %d | %d MB | %.1f %% | %.1f |\n", n, l.idle.resident>>20,
			100*l.idle.cpu.Seconds()/l.length.Seconds(), float64(commands)/l.length.Seconds())
	}
	return nil
}

// asked parks calls until there are n, and watches them wait.
func (p *parking) asked(ctx context.Context, n int) (level, error) {
	l := level{parked: n, length: askedIdle}
	body := requestBy(p.gateway, mcp.MethodToolsCall, askTool, `"name":"`+askTool+`","arguments":{}`, canBeAsked)
	if err := p.fill(n, over("ask", p.gateway, `"requestState":`, body)); err != nil {
		return l, err
	}
	err := p.watch(ctx, n, &l)
	return l, err
}

// question is what a call asks on its stream; its id is made from that of the call.
func question(w http.ResponseWriter, call string) {
	_, _ = fmt.Fprintf(w, "data: {\"jsonrpc\":\"2.0\",\"id\":\"q-%s\",\"method\":%q,\"params\":{\"message\":\"What is your name?\",\"requestedSchema\":{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\"}}}}}\n\n",
		strings.Trim(call, `"`), mcp.MethodElicit) // a peer that is gone ends the request's context
	_ = http.NewResponseController(w).Flush()
}
