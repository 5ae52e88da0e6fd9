package jsonrpc

import (
	"encoding/json"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestPickResult: what is noted of a long result is what a look through it finds.
func TestPickResult(t *testing.T) {
	names := []string{"isError", "resultType", "_meta"}
	pad := `"pad":"` + strings.Repeat(`\"line\"\n`, longText/10) + `"`
	many := ""
	for i := range mostMembers {
		many += `"m` + strconv.Itoa(i) + `":` + strconv.Itoa(i) + `,`
	}
	for name, c := range map[string]struct {
		result string
		noted  bool
	}{
		"none":      {`{` + pad + `}`, true},
		"all":       {` { "isError" : true , ` + pad + `,"resultType":"complete","_meta":{"a":[1,{"_meta":2}]} } `, true},
		"escaped":   {`{"\u005fmeta":1,` + pad + `}`, true},
		"twice":     {`{"_meta":1,` + pad + `,"_meta":2}`, true},
		"surrogate": {`{"isError":"\ud800",` + pad + `}`, true},
		"many":      {`{` + many + pad + `,"_meta":{}}`, false},
		"no object": {`[{"_meta":1,` + pad + `}]`, false},
		"text":      {`"` + strings.Repeat("x", longText) + `"`, false},
		"short":     {`{"isError":true}`, false},
	} {
		m, err := ParseLenient([]byte(`{"jsonrpc":"2.0","id":1,"result":` + c.result + `}`))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if want := strings.TrimSpace(c.result); string(m.Result) != want || (m.Members != nil) != c.noted {
			t.Errorf("%s: %d bytes of %d, %d members are noted", name, len(m.Result), len(want), len(m.Members))
		}
		got, want := make([]json.RawMessage, len(names)), make([]json.RawMessage, len(names))
		m.PickResult(names, got)
		Pick(m.Result, names, want)
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s: %s", name, d)
		}
	}
	for _, broken := range []string{`{` + pad, `{` + pad + `,}`, `{1:` + pad + `}`, `{` + pad + `]`, `{"a" ` + pad + `}`, `{"a":}` + pad} {
		if _, err := ParseLenient([]byte(`{"jsonrpc":"2.0","id":1,"result":` + broken + `}`)); err == nil {
			t.Errorf("%.20s… is taken", broken)
		}
	}
}
