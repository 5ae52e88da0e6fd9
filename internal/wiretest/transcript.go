// Package wiretest is what the tests of both eras share to speak with a gateway over HTTP. In
// come requests as transcripts spell them, out go responses as text, held against the official
// schemas. Only tests import it.
package wiretest

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"

	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/internal/mcpheader"
)

// Update makes a test rewrite its transcripts.
var Update = flag.Bool("update", false, "rewrite the responses in testdata")

// Macros are the envelopes that requests are written with.
var Macros = strings.NewReplacer(
	"$META", `"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}`,
	"$TASKS", `"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{"extensions":{"io.modelcontextprotocol/tasks":{}}}`,
)

// ParseRequest reads a request section.
func ParseRequest(t testing.TB, text string) (*http.Request, string, jsonrpc.Message) {
	t.Helper()
	head, body, _ := strings.Cut(text, "\n\n")
	lines := strings.Split(strings.TrimSpace(head), "\n")
	first := append(strings.Fields(lines[0]), "")
	body = strings.TrimSuffix(Macros.Replace(body), "\n")
	msg, _ := jsonrpc.Parse([]byte(body))
	r := httptest.NewRequest(first[0], first[1], strings.NewReader(body))
	r.Host = "127.0.0.1:8080"
	if first[2] != "bare" && first[0] == http.MethodPost {
		CorrectHeaders(r.Header, msg)
	}
	own := http.Header{}
	for _, line := range lines[1:] {
		name, value, _ := strings.Cut(line, ":")
		own.Add(name, strings.TrimPrefix(value, " "))
	}
	for name, values := range own {
		r.Header[name] = values
		if values[0] == "-" {
			delete(r.Header, name)
		}
	}
	if host := r.Header.Get("Host"); host != "" {
		r.Host = host
	}
	return r, first[2], msg
}

// CorrectHeaders are those that a client has to send with a modern request.
func CorrectHeaders(h http.Header, msg jsonrpc.Message) {
	h.Set("Content-Type", mcp.TypeJSON)
	h.Set("Accept", mcp.TypeAccept)
	if v, ok := jsonrpc.GetString(msg.Params, "_meta", mcp.MetaProtocolVersion); ok {
		h.Set(mcp.HeaderProtocolVersion, v)
	}
	h.Set(mcp.HeaderMethod, msg.Method)
	if name, ok := jsonrpc.GetString(msg.Params, mcp.NameParam(msg.Method)); ok {
		h.Set(mcp.HeaderName, mcpheader.Encode(name))
	}
}

// ResponseText is the response as a transcript shows it.
func ResponseText(rec *httptest.ResponseRecorder) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d %s\n", rec.Code, http.StatusText(rec.Code))
	for _, name := range []string{"Allow", "Access-Control-Allow-Origin", "Access-Control-Allow-Headers", "Content-Type",
		"Cache-Control", "X-Accel-Buffering", "Mcp-Session-Id"} {
		if v := rec.Header().Get(name); v != "" {
			fmt.Fprintf(&b, "%s: %s\n", name, v)
		}
	}
	body, _ := io.ReadAll(rec.Body)
	if len(body) > 0 {
		fmt.Fprintf(&b, "\n%s\n", bytes.TrimRight(body, "\n"))
	}
	return b.String()
}

// WriteTranscript rewrites a file with what was recorded.
func WriteTranscript(t testing.TB, file string, ar *txtar.Archive) {
	t.Helper()
	for i := range ar.Files {
		if !strings.HasSuffix(string(ar.Files[i].Data), "\n") && len(ar.Files[i].Data) > 0 {
			ar.Files[i].Data = append(ar.Files[i].Data, '\n')
		}
	}
	if err := os.WriteFile(file, txtar.Format(ar), 0o644); err != nil {
		t.Fatal(err)
	}
}

// ModernPost is a well-formed request of the modern era.
func ModernPost(method, params string) *http.Request {
	params = Macros.Replace(params)
	body := fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":%q,"params":%s}`, method, params)
	r := httptest.NewRequest(http.MethodPost, "/mcp", strings.NewReader(body))
	r.Host = "127.0.0.1"
	msg, _ := jsonrpc.Parse([]byte(body))
	CorrectHeaders(r.Header, msg)
	return r
}

// ClientRequest is a POST as a client sends it.
func ClientRequest(ctx context.Context, url string, header http.Header, body []byte) *http.Request {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		panic(err) // the URL is the test's own
	}
	req.Header = header
	return req
}

// InitializeBody opens a session of 2025-11-25.
const InitializeBody = `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"c","version":"2"}}}`
