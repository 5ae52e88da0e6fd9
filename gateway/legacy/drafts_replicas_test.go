package legacy_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"strings"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"taskgate/gateway/config"
	"taskgate/gateway/legacy"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/wiretest"
	"taskgate/shim"
)

// withPieces adds a tool that says what it is given, piece by piece, and at the end all
// of it.
func withPieces(s *sdk.Server) chan<- string {
	pieces := make(chan string)
	s.AddTool(&sdk.Tool{Name: "pieces", InputSchema: json.RawMessage(`{"type":"object"}`)}, func(ctx context.Context, r *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		var all strings.Builder
		for no := 1.0; ; no++ {
			select {
			case piece := <-pieces:
				if piece == "" {
					return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: all.String()}, &sdk.TextContent{Text: "end"}}}, nil
				}
				all.WriteString(piece)
				p := &sdk.ProgressNotificationParams{ProgressToken: r.Params.GetProgressToken(), Progress: no, Message: piece}
				if err := r.Session.NotifyProgress(ctx, p); err != nil {
					return nil, err
				}
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
	})
	return pieces
}

// streamingReplicas are two replicas in front of a tool that says pieces, and one client
// that takes every response mode, at the first and at the second of them.
func streamingReplicas(t *testing.T) (stack *legacyReplicas, say chan<- string, a, b *rawClient) {
	t.Helper()
	stack = newLegacyReplicas(t, atOnce)
	say = withPieces(stack.server)
	a, b = stack.beginBoth(t, allModes)
	return stack, say, a, b
}

// atOnce has what tools say be content. It goes out as it comes (startReplica).
func atOnce(c *config.Config) {
	c.Upstreams[0].Defaults.Progress = config.ProgressContent
	c.Upstreams[0].ResponseModes = config.On
}

const piecesCall = `{"jsonrpc":"2.0","id":"p","method":"tools/call","params":{"name":"pieces","task":{"responseModes":["streaming"]}}}`

// upTo reads answers of a stream until there are n blocks, or the end, and returns the
// id of the last event.
func (s *segments) upTo(c *sseClient, n int64) (last string) {
	s.t.Helper()
	for s.last < n && !s.over {
		id, data, ok := c.event()
		if !ok {
			s.t.Fatalf("the stream ended after %d blocks", s.last)
		}
		if data != "" {
			s.take([][]byte{[]byte(data)})
		}
		last = id
	}
	return last
}

// pullTo asks a replica for more, by number, until there are n blocks, or the end.
func (s *segments) pullTo(c *rawClient, n int64) {
	s.t.Helper()
	for s.last < n && !s.over {
		status, body := c.post(fmt.Sprintf(`{"jsonrpc":"2.0","id":"r","method":"tasks/result","params":{"taskId":%q,"lastSeqNr":%d}}`, s.task, s.last))
		if status != http.StatusOK || !strings.Contains(body, "partial-content") {
			s.t.Fatalf("%d %s", status, body)
		}
		s.take([][]byte{[]byte(body)})
	}
}

func (s *segments) wantMergedAt(c *rawClient) {
	s.t.Helper()
	_, body := c.post(fmt.Sprintf(`{"jsonrpc":"2.0","id":"m","method":"tasks/result","params":{"taskId":%q}}`, s.task))
	content, _ := jsonrpc.Get([]byte(body), "result", "content")
	if got := "[" + strings.Join(s.blocks, ",") + "]"; !s.over || got != string(content) {
		s.t.Errorf("complete: %t; all segments %s are not the content in %s", s.over, got, body)
	}
}

// TestReplicasStream: a client whose stream broke fetches the rest at the other replica, by number.
func TestReplicasStream(t *testing.T) {
	_, say, a, b := streamingReplicas(t)
	first := openSSE(t, a, http.MethodPost, piecesCall, "")
	s := &segments{t: t}
	say <- "a"
	s.upTo(first, 1)
	first.close()
	say <- "b"
	s.pullTo(b, 2)
	say <- ""
	s.pullTo(b, math.MaxInt64)
	s.wantMergedAt(a)
}

// upTo reads a GET stream until a task has come this far, or has ended.
func (r *partialReader) upTo(c *sseClient, id shim.ID, n int64) (last string) {
	r.t.Helper()
	for r.next[id] < n && !r.over[id] {
		event, data, ok := c.event()
		if !ok {
			r.t.Fatalf("the stream ended after %d partial results", r.next[id])
		}
		if data != "" {
			r.take([][]byte{[]byte(data)})
		}
		if event != "" {
			last = event
		}
	}
	return last
}

// TestReplicasPartials: partial results follow a client that takes its GET stream from
// replica to replica, while the old one has not noticed, without gap or repeat.
func TestReplicasPartials(t *testing.T) {
	stack := newLegacyReplicas(t, atOnce)
	say := withPieces(stack.server)
	a, b := stack.beginBoth(t, takePartial)
	at := []*rawClient{b, a}
	stream := openSSE(t, b, http.MethodGet, "", "")
	id := shim.ID(a.task("pieces"))
	r := newPartialReader(t)
	want, said := "", int64(0)
	for turn := range 6 {
		last := ""
		for range 5 {
			piece := fmt.Sprintf("%d ", said)
			say <- piece
			want += piece
			said++
			if got := r.upTo(stream, id, said); got != "" {
				last = got
			}
		}
		old := stream
		stream = openSSE(t, at[(turn+1)%2], http.MethodGet, "", last)
		if stream.resp.StatusCode != http.StatusOK {
			t.Fatalf("resumed: %d", stream.resp.StatusCode)
		}
		for piece := range 3 { // while the old one may still go on
			text := fmt.Sprintf("%d' ", piece)
			say <- text
			want += text
			said++
		}
		defer old.close()
	}
	say <- ""
	r.upTo(stream, id, 1000)
	if r.text[id] != want || !r.over[id] {
		t.Errorf("over %t, read %q, want %q", r.over[id], r.text[id], want)
	}
	fresh := stack.begin(t, 1, takePartial)
	if _, body := fresh.post(fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"taskId":%q}}`, id)); !strings.Contains(body, `"streamPartial":true`) {
		t.Errorf("tools: %s", body)
	}
}

// TestStreamStopped: a replica that stops ends its pushes, and says how to get the rest.
func TestStreamStopped(t *testing.T) {
	stack, say, a, b := streamingReplicas(t)
	first := openSSE(t, a, http.MethodPost, piecesCall, "")
	s := &segments{t: t}
	say <- "a"
	s.upTo(first, 1)
	closing := make(chan error, 1)
	go func() { closing <- stack.gates[0].Close(context.Background()) }()
	said := first.rest() // one error that says how to get the rest
	if strings.Count(said, "jsonrpc") != 1 || !strings.Contains(said, `"id":"p"`) || !strings.Contains(said, "-32603") ||
		!strings.Contains(said, "lastSeqNr") || !strings.Contains(said, string(s.task)) {
		t.Errorf("the stream of %s ended with %q", s.task, said)
	}
	if err := wiretest.Await(t, closing, "the end of its streams"); err != nil {
		t.Error(err)
	}
	say <- "b" // its call runs on
	s.pullTo(b, 2)
	say <- ""
	s.pullTo(b, math.MaxInt64)
	s.wantMergedAt(b)
}

// TestLastWords: of the requests of a lost stream those are answered that have no answer
// in its log.
func TestLastWords(t *testing.T) {
	task := []byte(`{"jsonrpc":"2.0","id":"a","result":{"task":{"taskId":"t"}}}`)
	fails := []byte(`{"jsonrpc":"2.0","id":2,"error":{"code":-32603,"message":"no"}}`)
	asks := []byte(`{"jsonrpc":"2.0","id":"a","method":"roots/list"}`)
	const waits = `["a",{"task":"t"}]`
	for name, c := range map[string]struct {
		note string
		had  [][]byte
		want []string // ids, or texts
	}{
		"none":          {`[]`, nil, nil},
		"of no release": {`{}`, nil, nil},
		"all":           {`["a",2]`, [][]byte{asks}, []string{`"a"`, `2`}},
		"one":           {`["a",2]`, [][]byte{fails, []byte("nonsense")}, []string{`"a"`}},
		"with a keeper": {`["a",{"keeper":"k"}]`, nil, []string{`"a"`}},
		"waits":         {waits, nil, []string{"was lost"}},
		"answered":      {waits, [][]byte{task}, nil},
	} {
		got := legacy.LastWords([]byte(c.note), c.had)
		if len(got) != len(c.want) {
			t.Errorf("%s: %s", name, got)
			continue
		}
		for i, m := range got {
			if msg, err := jsonrpc.Parse(m); err != nil || msg.Kind != jsonrpc.ErrorResponse || !strings.Contains(string(m), c.want[i]) {
				t.Errorf("%s: %s, want %s", name, m, c.want[i])
			}
		}
	}
}
