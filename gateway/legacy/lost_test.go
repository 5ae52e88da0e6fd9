package legacy_test

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"taskgate/gateway/legacy"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/wiretest"
)

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
	for s.last < 2 {
		s.pullAt(b)
	}
	say <- ""
	for !s.over {
		s.pullAt(b)
	}
	s.mergedAt(b)
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
