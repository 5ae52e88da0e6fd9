package legacy_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"

	"taskgate/gateway/upstream"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/internal/schematest"
	"taskgate/internal/wiretest"
	"taskgate/shim/shimtest/fake"
)

// TestBrokenServersWire replays the transcripts of testdata/broken, each a mistake of servers,
// and compares what clients of both eras get with them, byte for byte; -update rewrites them.
// Their sections are steps:
//
//	server ERA  a server of this era, legacy or modern, behind a new gateway
//	sends       the body with which it answers tools/call, as JSON or, if it begins with
//	            "data:", as events. {id} and {token} are those of the request, <CR> is a
//	            carriage return that ends a line, and <FF> a byte that is no UTF-8
//	legacy      what a client of 2025-11-25 gets for a call with a progress token
//	modern      what one of 2026-07-28 gets
func TestBrokenServersWire(t *testing.T) {
	replayTranscripts(t, "broken", playBroken)
}

// Clients ask for this.
const (
	brokenCall   = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"t","_meta":{"progressToken":"p"}}}`
	brokenModern = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"t","_meta":{$META,"progressToken":"p"}}}`
)

func playBroken(t *testing.T, archive *txtar.Archive) {
	var server *fake.Server
	var handler http.Handler
	for i := range archive.Files {
		f := &archive.Files[i]
		switch word, name, _ := strings.Cut(f.Name, " "); word {
		case "server":
			mode := fake.Stateful
			if name == "modern" {
				mode = fake.Modern
			}
			server = fake.New(t, mode)
			handler = startAlone(t, upstream.Config{URL: server.URL}, nil).Handler()
		case "sends":
			server.Tool("t", sends(string(f.Data)))
		case "legacy":
			made := askBroken(t, handler, "POST /up/mcp\n\n"+wiretest.InitializeBody)
			session := mcp.HeaderSession + ": " + made.Header().Get(mcp.HeaderSession)
			f.Data = []byte(responseText(askBroken(t, handler, "POST /up/mcp\n"+session+"\n\n"+brokenCall)))
		case "modern":
			f.Data = []byte(responseText(askBroken(t, handler, "POST /up/mcp\n\n"+brokenModern)))
		default:
			t.Fatalf("unknown section %q", f.Name)
		}
	}
}

// sends is a tool that answers as a section says.
func sends(body string) fake.Behaviour {
	body = strings.NewReplacer("<CR>\n", "\r", "<FF>", "\xff").Replace(body)
	return func(x *fake.Exchange) {
		x.Run()
		x.W.Header().Set("Content-Type", mcp.TypeJSON)
		if strings.HasPrefix(body, "data:") {
			x.W.Header().Set("Content-Type", mcp.TypeSSE)
		}
		_, _ = io.WriteString(x.W, x.Fill(body)) // a client that has gone hears nothing
	}
}

// askBroken plays a request, and holds the response against the official schema of its version.
func askBroken(t *testing.T, handler http.Handler, request string) *httptest.ResponseRecorder {
	t.Helper()
	r, word, msg := wiretest.ParseRequest(t, request)
	rec := httptest.NewRecorder()
	handler.ServeHTTP(rec, r)
	if strings.Contains(request, "$META") {
		wiretest.CheckSchemas(t, msg, word, rec)
		return rec
	}
	for _, text := range wiretest.MessagesOf(rec.Header().Get("Content-Type"), rec.Body.Bytes()) {
		if result, ok := jsonrpc.Get(text, "result"); ok && msg.Method == mcp.MethodToolsCall {
			schematest.Validate(t, mcp.Version20251125, "CallToolResult", result)
		}
	}
	return rec
}

// eventID is the id of an event of a legacy stream, which has a random name in it.
var eventID = regexp.MustCompile(`(?m)^id: .*$`)

func responseText(rec *httptest.ResponseRecorder) string {
	return eventID.ReplaceAllString(wiretest.ResponseText(rec), "id: (its id)")
}
