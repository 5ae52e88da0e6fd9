package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
)

// session is a client session of 2025-11-25 that any replica serves.
type session struct {
	t      *testing.T
	id     string
	serial atomic.Int64
}

// begin initializes a session at one replica, whose client can be asked.
func begin(t *testing.T, g *gateway) *session {
	t.Helper()
	s := &session{t: t}
	s.do(g, mcp.MethodInitialize, `{"protocolVersion":"2025-11-25","capabilities":{"elicitation":{}},"clientInfo":{"name":"e2e","version":"1"}}`)
	return s
}

// legacyRequest sends a request in a session, if there is one, with more headers.
func legacyRequest(ctx context.Context, method, url, session, body string, more ...string) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Accept", mcp.TypeAccept)
	r.Header.Set("Content-Type", mcp.TypeJSON)
	if session != "" {
		r.Header.Set(mcp.HeaderSession, session)
	}
	for i := 0; i < len(more); i += 2 {
		r.Header.Set(more[i], more[i+1])
	}
	return http.DefaultClient.Do(r)
}

func (s *session) request(ctx context.Context, g *gateway, method, body string, more ...string) *http.Response {
	s.t.Helper()
	resp, err := legacyRequest(ctx, method, g.url, s.id, body, more...)
	if err != nil {
		s.t.Fatal(err)
	}
	return resp
}

// do sends a request to a replica and returns its result.
func (s *session) do(g *gateway, method, params string) json.RawMessage {
	s.t.Helper()
	_, m := s.stay(g, g, method, params, "{}")
	if m.Result == nil {
		s.t.Fatalf("%s: %+v", method, m.Error)
	}
	return m.Result
}

// stay sends a request, and stays until that is answered. What its client is asked meanwhile it fills in with
// content, at a replica. It returns the parameters of the questions as well.
func (s *session) stay(g, answers *gateway, method, params, content string) (asked string, answer wireMessage) {
	s.t.Helper()
	resp := s.request(s.t.Context(), g, http.MethodPost, fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":%q,"params":%s}`, s.serial.Add(1), method, params))
	defer resp.Body.Close()
	if id := resp.Header.Get(mcp.HeaderSession); id != "" {
		s.id = id
	}
	follow(resp, func(m wireMessage) {
		switch {
		case m.Method == mcp.MethodElicit:
			asked += string(m.Params)
			s.answer(answers, m.ID, content)
		case m.Method == "":
			answer = m
		}
	})
	return asked, answer
}

// answer posts a client's answer to a question.
func (s *session) answer(g *gateway, id json.RawMessage, content string) {
	s.t.Helper()
	resp := s.request(s.t.Context(), g, http.MethodPost, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"action":"accept","content":%s}}`, id, content))
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusAccepted {
		s.t.Errorf("the answer was met with %s", resp.Status)
	}
}

// follow hands over the messages of a response, which may be a stream, until it ends.
func follow(resp *http.Response, take func(wireMessage)) {
	body := bufio.NewReader(resp.Body)
	for {
		line, err := body.ReadBytes('\n')
		var m wireMessage
		if json.Unmarshal(bytes.TrimPrefix(line, []byte("data: ")), &m) == nil {
			take(m)
		}
		if err != nil {
			return
		}
	}
}

// listen opens the session's stream at a replica, as soon as that lets it, and hands over what comes until the test ends.
func (s *session) listen(g *gateway, take func(wireMessage)) {
	s.t.Helper()
	var resp *http.Response
	ctx, leave := context.WithCancel(s.t.Context())
	eventually(s.t, "a GET stream", func() error {
		if resp = s.request(ctx, g, http.MethodGet, ""); resp.StatusCode == http.StatusOK {
			return nil
		}
		_ = resp.Body.Close()
		return errors.New(resp.Status)
	})
	done := make(chan struct{})
	go func() {
		defer close(done)
		follow(resp, take)
	}()
	s.t.Cleanup(func() {
		leave()
		_ = resp.Body.Close()
		<-done
	})
}

// task makes a task of a call at a replica and returns its id.
func (s *session) task(g *gateway, tool string, args map[string]any) string {
	s.t.Helper()
	params, err := json.Marshal(map[string]any{"name": tool, "arguments": args, "task": map[string]any{"ttl": 60_000}})
	if err != nil {
		s.t.Fatal(err)
	}
	id, ok := jsonrpc.GetString(s.do(g, mcp.MethodToolsCall, string(params)), "task", "taskId")
	if !ok {
		s.t.Fatal("no task was made")
	}
	return id
}

// hear opens the session's stream at a replica. The function it returns tells what
// has been heard of tasks so far.
func (s *session) hear(g *gateway) func() []string {
	s.t.Helper()
	var mu sync.Mutex
	var heard []string
	s.listen(g, func(m wireMessage) {
		var p struct{ TaskID, Status string }
		if m.Method != mcp.NotifyTaskStatus || json.Unmarshal(m.Params, &p) != nil {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		heard = append(heard, p.TaskID+" "+p.Status)
	})
	return func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(heard)
	}
}
