package mcpheader

import (
	"strings"
	"testing"

	"pgregory.net/rapid"

	"taskgate/internal/jsonrpc"
)

func TestValue(t *testing.T) {
	for _, tt := range []struct {
		typ, arg, want string
		present, ok    bool
	}{
		{"string", `"a"`, "a", true, true},
		{"string", ` "\u00e9\n" `, "é\n", true, true},
		{"string", `""`, "", true, true},
		{"string", `"null"`, "null", true, true},
		{"string", ``, "", false, true},
		{"string", `null`, "", false, true},
		{"string", `7`, "", false, false},
		{"integer", `0`, "0", true, true},
		{"integer", `-0`, "0", true, true},
		{"integer", `42.0`, "42", true, true},
		{"integer", `4.2e1`, "42", true, true},
		{"integer", `420E-1`, "42", true, true},
		{"integer", `9007199254740991`, "9007199254740991", true, true},
		{"integer", `-9007199254740991`, "-9007199254740991", true, true},
		{"integer", `9007199254740992`, "", false, false},
		{"integer", `-9007199254740992`, "", false, false},
		{"integer", `4.2`, "", false, false},
		{"integer", `1e400`, "", false, false},
		{"integer", `1e999999999`, "", false, false},
		{"integer", `1e-999999999`, "", false, false},
		{"integer", `"42"`, "", false, false},
		{"integer", `true`, "", false, false},
		{"integer", `[1]`, "", false, false},
		{"integer", `null`, "", false, true},
		{"boolean", `true`, "true", true, true},
		{"boolean", `false`, "false", true, true},
		{"boolean", `null`, "", false, true},
		{"boolean", `0`, "", false, false},
		{"boolean", `"true"`, "", false, false},
		{"number", `1`, "", false, false},
	} {
		got, present, err := Value([]byte(tt.arg), Param{Header: "X", Type: tt.typ})
		if got != tt.want || present != tt.present || (err == nil) != tt.ok {
			t.Errorf("Value(%s as %s) = %q, %v, %v", tt.arg, tt.typ, got, present, err)
		}
	}
}

func TestMatch(t *testing.T) {
	for _, tt := range []struct {
		typ, header, arg string
		ok               bool
	}{
		{"string", "a", `"a"`, true},
		{"string", " a\t", `"\u0061"`, true},
		{"string", "A", `"a"`, false},
		{"string", "", `""`, true},
		{"string", "=?base64?w6k=?=", `"é"`, true},
		{"string", "=?base64?w6k?=", `"é"`, false},
		{"string", "é", `"é"`, false},
		{"string", "=?base64?YQ==?=", `"a"`, true}, // encoded without need
		{"string", "=?base64?YQ==?=", `"=?base64?YQ==?="`, false},
		{"string", "a", `null`, false},
		{"string", "", ``, false},
		{"string", "42", `42`, false},
		{"integer", "42", `42`, true},
		{"integer", "42", `42.0`, true},
		{"integer", "42.0", `42`, true},
		{"integer", "4.2e1", `42`, true},
		{"integer", "=?base64?NDI=?=", `42`, true},
		{"integer", "042", `42`, false},
		{"integer", "+42", `42`, false},
		{"integer", "0x2a", `42`, false},
		{"integer", "84/2", `42`, false},
		{"integer", "4_2", `42`, false},
		{"integer", "43", `42`, false},
		{"integer", "", `0`, false},
		{"integer", "true", `1`, false},
		{"integer", "9007199254740993", `9007199254740992`, false},
		{"boolean", "true", `true`, true},
		{"boolean", "True", `true`, false},
		{"boolean", "1", `true`, false},
		{"boolean", "false", `true`, false},
	} {
		err := Match(tt.header, []byte(tt.arg), Param{Header: "X", Type: tt.typ})
		if (err == nil) != tt.ok {
			t.Errorf("Match(%q, %s as %s): %v", tt.header, tt.arg, tt.typ, err)
		}
	}
}

// No error repeats the argument or the header: either may be secret.
func TestErrorsDoNotQuote(t *testing.T) {
	const secret = "hunter2"
	p := Param{Header: "X", Type: "integer"}
	for _, err := range []error{
		Match(secret, []byte(`1`), p),
		Match("1", []byte(`"`+secret+`"`), p),
		Match(secret, []byte(`"x"`), Param{Header: "X", Type: "string"}),
		Match("=?base64?"+secret+"?=", []byte(`"x"`), Param{Header: "X", Type: "string"}),
	} {
		if err == nil || strings.Contains(err.Error(), secret) {
			t.Errorf("%v", err)
		}
	}
}

// The header that an upstream client writes is the header that a handler accepts.
func TestValueMatches(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := Param{Header: "X", Type: rapid.SampledFrom([]string{"string", "integer", "boolean"}).Draw(t, "type")}
		var arg []byte
		switch p.Type {
		case "string":
			arg = jsonrpc.AppendString(nil, rapid.String().Draw(t, "s"))
		case "integer":
			arg = []byte(jsonrpc.IntID(rapid.Int64Range(-maxInteger, maxInteger).Draw(t, "n")).Raw())
		default:
			arg = []byte(rapid.SampledFrom([]string{"true", "false"}).Draw(t, "b"))
		}
		s, present, err := Value(arg, p)
		if err != nil || !present {
			t.Fatal(present, err)
		}
		if err := Match(Encode(s), arg, p); err != nil {
			t.Fatalf("%s: %q: %v", arg, s, err)
		}
	})
}
