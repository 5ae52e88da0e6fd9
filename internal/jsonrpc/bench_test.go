package jsonrpc

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"
)

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
