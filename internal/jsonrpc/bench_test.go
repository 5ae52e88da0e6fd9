package jsonrpc

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"
)

var smallRequest = []byte(`{"jsonrpc":"2.0","id":17,"method":"tools/call","params":{"name":"deep_research","arguments":{"query":"what is a task","depth":3,"sources":["web","papers"]},"_meta":{"progressToken":"r1-17","io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{"elicitation":{}}}}}`)

// bigResult is a result object of about n bytes made of small members, the
// shape that costs a reader most.
func bigResult(n int) []byte {
	const row = `{"id":123456,"name":"row with some text","tags":["a","b"],"score":0.5,"note":"line\nbreak"},`
	return []byte(`{"content":[` + strings.TrimSuffix(strings.Repeat(row, n/len(row)), ",") + `],"isError":false}`)
}

func BenchmarkParseSmall(b *testing.B) {
	b.ReportAllocs()
	b.SetBytes(int64(len(smallRequest)))
	for b.Loop() {
		if _, err := Parse(smallRequest); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkParseResult(b *testing.B) {
	text := AppendResult(nil, IntID(1), bigResult(2_400_000))
	for name, parse := range map[string]func([]byte) (Message, error){"strict": Parse, "lenient": ParseLenient} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(text)))
			for b.Loop() {
				if _, err := parse(text); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkGetSmall(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		if _, ok := Get(smallRequest, "params", "_meta", "io.modelcontextprotocol/protocolVersion"); !ok {
			b.Fatal("absent")
		}
	}
}

// BenchmarkSet compares a splice with the copy that it cannot do without. Rows
// are many small values; text is one long string.
func BenchmarkSet(b *testing.B) {
	text := []byte(`{"text":"` + strings.Repeat(`plain words and \"quotes\" `, 740_000) + `"}`)
	for name, obj := range map[string][]byte{"rows": bigResult(20_000_000), "text": text} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(obj)))
			for b.Loop() {
				if _, err := Set(obj, []byte(`"complete"`), "resultType"); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(name+"/copy", func(b *testing.B) {
			b.SetBytes(int64(len(obj)))
			for b.Loop() {
				_ = bytes.Clone(obj)
			}
		})
	}
}

// BenchmarkPick reads four members of an envelope in one pass, and one after the other.
func BenchmarkPick(b *testing.B) {
	m, err := Parse(smallRequest)
	if err != nil {
		b.Fatal(err)
	}
	meta, _ := Get(m.Params, "_meta")
	wanted := []string{"io.modelcontextprotocol/protocolVersion", "io.modelcontextprotocol/clientCapabilities", "progressToken", "traceparent"}
	b.Run("Pick", func(b *testing.B) {
		var values [4]json.RawMessage
		for b.Loop() {
			Pick(meta, wanted, values[:])
		}
	})
	b.Run("Get", func(b *testing.B) {
		var values [4]json.RawMessage
		for b.Loop() {
			for i, name := range wanted {
				values[i], _ = Get(meta, name)
			}
		}
	})
}

// BenchmarkPasses is what each look at a result of 1 MiB costs: a text with line ends and quotes,
// as the content of a file has them.
func BenchmarkPasses(b *testing.B) {
	line := `\tif name, ok := tools[\"name\"]; ok { return name } // about as long as a line of source\n`
	result := []byte(`{"resultType":"complete","content":[{"type":"text","text":"` + strings.Repeat(line, 1<<20/len(line)) + `"}]}`)
	text := AppendResult(nil, IntID(1), result)
	var values [3]json.RawMessage
	for name, pass := range map[string]func(){
		"utf8":  func() { utf8.Valid(text) },
		"parse": func() { _, _ = ParseLenient(text) },
		"pick":  func() { Pick(result, []string{"isError", "resultType", "_meta"}, values[:]) },
		"splice": func() {
			Splice(result, func(_ string, v json.RawMessage) json.RawMessage { return v }, func() []byte { return nil })
		},
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(text)))
			for b.Loop() {
				pass()
			}
		})
	}
}
