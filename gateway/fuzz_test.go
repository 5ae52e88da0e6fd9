package gateway

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"

	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/internal/wiretest"
)

// statuses are those that a POST may be answered with (protocol.md 2.5, 5.1).
var statuses = []int{200, 202, 400, 404, 406, 413, 415}

// FuzzPOST sends anything to the handler. It never panics, answers with a status
// that is documented, and with a message that can be read, or none.
func FuzzPOST(f *testing.F) {
	files, err := filepath.Glob("testdata/modern/*.txtar")
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range files {
		ar, err := txtar.ParseFile(file)
		if err != nil {
			f.Fatal(err)
		}
		for _, section := range ar.Files {
			if head, body, ok := strings.Cut(string(section.Data), "\n\n"); ok && strings.HasPrefix(head, "POST") {
				f.Add("2026-07-28", "tools/call", "x", "42", wiretest.Macros.Replace(body))
			}
		}
	}
	f.Add("", "", "", "", `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"c","version":"1"}}}`)
	f.Add("2025-03-26", "", "", "", `[{"jsonrpc":"2.0","id":1,"method":"ping"}]`)

	h := fuzzHandler(f)
	f.Fuzz(func(t *testing.T, version, method, name, param, body string) {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		r := httptest.NewRequest(http.MethodPost, "/mcp", strings.NewReader(body)).WithContext(ctx)
		r.Host = "127.0.0.1"
		msg, _ := jsonrpc.Parse([]byte(body))
		wiretest.CorrectHeaders(r.Header, msg)
		for h, v := range map[string]string{mcp.HeaderProtocolVersion: version, mcp.HeaderMethod: method, mcp.HeaderName: name, "Mcp-Param-N": param} {
			if v != "" {
				r.Header.Set(h, v)
			}
		}
		rec := httptest.NewRecorder()
		h.ServeHTTP(rec, r)
		if !slices.Contains(statuses, rec.Code) {
			t.Errorf("status %d", rec.Code)
		}
		messages := wiretest.MessagesOf(rec.Header().Get("Content-Type"), rec.Body.Bytes())
		if len(messages) == 0 && rec.Code != http.StatusAccepted {
			t.Errorf("status %d without a message", rec.Code)
		}
		for _, text := range messages {
			if _, err := jsonrpc.ParseLenient(text); err != nil {
				t.Errorf("%v: %s", err, text)
			}
		}
	})
}

func fuzzHandler(f *testing.F) http.Handler {
	s := newStage(f)
	s.up.Era = mcp.Modern
	s.up.Capabilities = json.RawMessage(`{"tools":{},"prompts":{},"resources":{},"completions":{}}`)
	s.up.Info = json.RawMessage(`{"name":"up","version":"1"}`)
	s.up.Tools = []json.RawMessage{[]byte(`{"name":"x","inputSchema":{"type":"object","properties":{"n":{"type":"integer","x-mcp-header":"N"}}}}`)}
	s.up.Stream.End = true
	result := fakeReply{Result: []byte(`{"resultType":"complete","tools":[],"content":[]}`), Progress: []json.RawMessage{[]byte(`{"progressToken":"u","progress":1}`)}}
	s.up.Replies = map[string]fakeReply{}
	for _, method := range []string{
		mcp.MethodToolsList, mcp.MethodToolsCall, mcp.MethodPromptsList, mcp.MethodPromptsGet,
		mcp.MethodResourcesList, mcp.MethodResourceTemplatesList, mcp.MethodResourcesRead, mcp.MethodComplete,
	} {
		s.up.Replies[method] = result
	}
	s.up.Quiet = true
	h := s.start()
	f.Cleanup(func() { _ = s.gateway.Close(context.Background()) })
	return h
}
