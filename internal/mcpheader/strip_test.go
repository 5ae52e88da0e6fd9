package mcpheader

import (
	"strings"
	"testing"

	"taskgate/internal/jsonrpc"
)

func TestStrip(t *testing.T) {
	for in, want := range map[string]string{
		`{"type":"object"}`: `{"type":"object"}`,
		`{"properties":{"a":{"type":"integer", "x-mcp-header":"A","maximum":1.0}}}`:                                        `{"properties":{"a":{"type":"integer","maximum":1.0}}}`,
		`{"properties":{"x-mcp-header":{"x-mcp-header":"A","type":"string"}}}`:                                             `{"properties":{"x-mcp-header":{"type":"string"}}}`,
		`{"x-mcp-header":"Root","anyOf":[{"x-mcp-header":"A"},{"items":{"x-mcp-header":"B"}},true]}`:                       `{"anyOf":[{},{"items":{}},true]}`,
		`{"$defs":{"x-mcp-header":{"x-mcp-header":1}},"default":{"x-mcp-header":"data"},"enum":[{"x-mcp-header":"data"}]}`: `{"$defs":{"x-mcp-header":{}},"default":{"x-mcp-header":"data"},"enum":[{"x-mcp-header":"data"}]}`,
		`{"x\u002dmcp-header":"A","k":"\u003c"}`:                                                                           `{"k":"\u003c"}`,
		`[]`:                                                                                                               `[]`,
		`true`:                                                                                                             `true`,
	} {
		if got := string(Strip([]byte(in))); got != want {
			t.Errorf("Strip(%s)\ngot  %s\nwant %s", in, got, want)
		}
	}
}

// TestStripLeavesNothing: what Params finds before is not found after.
func TestStripLeavesNothing(t *testing.T) {
	schema := `{"properties":{"a":{"type":"string","x-mcp-header":"A"},"b":{"properties":{"c":{"type":"boolean","x-mcp-header":"C"}}}}}`
	params, err := Params(Strip([]byte(schema)))
	if err != nil || len(params) != 0 {
		t.Errorf("%v, %v", params, err)
	}
	deep := strings.Repeat(`{"not":`, 2*maxDepth) + `{"x-mcp-header":"A"}` + strings.Repeat(`}`, 2*maxDepth)
	if got := Strip([]byte(deep)); string(got) != deep {
		t.Error("a schema too deep to be looked at was changed")
	}
}

func FuzzStrip(f *testing.F) {
	f.Add(`{"properties":{"a":{"x-mcp-header":"A"}},"anyOf":[{"x-mcp-header":1}]}`)
	f.Fuzz(func(t *testing.T, s string) {
		if _, err := jsonrpc.Parse([]byte(`{"jsonrpc":"2.0","id":1,"method":"m","params":{"s":` + s + `}}`)); err != nil {
			return
		}
		once := Strip([]byte(s))
		if _, err := jsonrpc.Parse([]byte(`{"jsonrpc":"2.0","id":1,"method":"m","params":{"s":` + string(once) + `}}`)); err != nil {
			t.Fatalf("%s became %s: %v", s, once, err)
		}
		if again := Strip(once); string(again) != string(once) {
			t.Fatalf("%s, then %s", once, again)
		}
	})
}
