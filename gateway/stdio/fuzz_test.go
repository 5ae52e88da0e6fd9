package stdio

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"testing"
	"testing/iotest"

	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
)

// FuzzLines: whatever is read, and however it is cut, the lines are those of the input, and those
// that are too long are skipped.
func FuzzLines(f *testing.F) {
	for _, s := range []string{"", "\n", "a\nb", "a\r\n\r\nb\r\n", "0123456789\n", "01234567890\nb\n", "012345678901234567890123\nb"} {
		f.Add([]byte(s))
	}
	const most = 10
	f.Fuzz(func(t *testing.T, in []byte) {
		var want []string
		rest := in
		for len(rest) > 0 {
			l, _, ended := bytes.Cut(rest, []byte("\n"))
			all := len(l)
			if ended {
				all++
			}
			rest = rest[all:]
			if l = bytes.TrimRight(l, "\r"); all > most+2 || len(l) > most {
				want = append(want, "!")
			} else {
				want = append(want, string(l))
			}
		}
		for _, r := range []io.Reader{bytes.NewReader(in), iotest.OneByteReader(bytes.NewReader(in))} {
			lines := newLineReader(r, most)
			var got []string
			for {
				l, err := lines.next()
				if errors.Is(err, io.EOF) {
					break
				}
				if err != nil {
					l = []byte("!")
				}
				got = append(got, string(l))
			}
			if len(got) != len(want) {
				t.Fatalf("%q: got %q, want %q", in, got, want)
			}
			for i := range got {
				if got[i] != want[i] {
					t.Fatalf("%q: got %q, want %q", in, got, want)
				}
			}
		}
	})
}

// FuzzConn: whatever a client writes, what it reads are messages, one in each line, and each
// request is answered that is neither cancelled nor a subscription.
func FuzzConn(f *testing.F) {
	for _, s := range []string{
		ask(1, "initialize") + "\n" + initialized + "\n" + ask(2, "tools/list") + "\n" + cancels("2"),
		modern("1", "tools/call") + "\n" + modern(`"1"`, "subscriptions/listen") + "\n" + cancels("1"),
		"[" + ask(1, "a") + "]\n{\n\n" + `{"jsonrpc":"2.0","id":1,"result":{}}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		s := &sessions{known: map[string]bool{"": true}, serve: answerEmpty}
		var out bytes.Buffer
		c := New(&out, Options{
			Path: "/mcp", MaxMessage: 1 << 10, Logger: slog.New(slog.DiscardHandler),
			Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Method != http.MethodPost {
					answer(w, http.StatusOK, "")
					return
				}
				s.handle(w, r)
			}),
		})
		if err := c.Serve(t.Context(), bytes.NewReader(in)); err != nil {
			t.Fatal(err)
		}
		if err := c.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		answers := map[string]int{}
		for l := range bytes.Lines(out.Bytes()) {
			var m struct{ ID json.RawMessage }
			if err := json.Unmarshal(l, &m); err != nil || l[len(l)-1] != '\n' {
				t.Fatalf("%q: read %q: %v", in, l, err)
			}
			answers[string(m.ID)]++
		}
		for l := range bytes.Lines(in) {
			m, err := jsonrpc.Parse(bytes.TrimRight(l, "\r\n"))
			if err == nil && m.Kind == jsonrpc.Request && m.Method != mcp.MethodListen && answers[m.ID.Raw()] == 0 &&
				!bytes.Contains(in, []byte("cancelled")) {
				t.Fatalf("%q: no answer to %s in %s", in, l, &out)
			}
		}
	})
}
