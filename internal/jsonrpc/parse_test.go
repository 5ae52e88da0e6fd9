package jsonrpc

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

var cmpMessage = cmp.Options{cmp.AllowUnexported(ID{}), cmpopts.IgnoreFields(Message{}, "Raw", "inner")}

func nested(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }

func TestParse(t *testing.T) {
	raw := func(s string) json.RawMessage { return json.RawMessage(s) }
	for _, tt := range []struct {
		name, in string
		want     Message
	}{
		{"request", `{"jsonrpc":"2.0","id":0,"method":"a/b","params":{"x": 1.0}}`,
			Message{Kind: Request, ID: IntID(0), Method: "a/b", Params: raw(`{"x": 1.0}`)}},
		{"no params", ` {"method":"m", "id":"\u0061","jsonrpc":"2.0"} ` + "\r\n",
			Message{Kind: Request, ID: ID{`"\u0061"`}, Method: "m"}},
		{"null params", `{"jsonrpc":"2.0","id":1,"method":"m","params":null}`,
			Message{Kind: Request, ID: IntID(1), Method: "m"}},
		{"half an emoji", `{"jsonrpc":"2.0","id":1,"method":"m","params":{"a":"cut \ud83d"}}`,
			Message{Kind: Request, ID: IntID(1), Method: "m", Params: raw(`{"a":"cut \ud83d"}`)}},
		{"array params", `{"jsonrpc":"2.0","id":1,"method":"m","params":[1]}`,
			Message{Kind: Request, ID: IntID(1), Method: "m", Params: raw(`[1]`)}},
		{"notification", `{"jsonrpc":"2.0","method":"n\u002fm","params":{}}`,
			Message{Kind: Notification, Method: "n/m", Params: raw(`{}`)}},
		{"result", `{"jsonrpc":"2.0","id":"a","result":{"v":9007199254740993}}`,
			Message{Kind: Result, ID: StringID("a"), Result: raw(`{"v":9007199254740993}`)}},
		{"null id of a notification", `{"jsonrpc":"2.0","id":null,"method":"notifications/m"}`,
			Message{Kind: Notification, Method: "notifications/m"}},
		{"null result", `{"jsonrpc":"2.0","id":"a","result":null}`,
			Message{Kind: Result, ID: StringID("a"), Result: raw(`null`)}},
		{"error", `{"jsonrpc":"2.0","id":3,"error":{"message":"no\n","code":-32601,"data":{"a":"\u003c"},"x":1}}`,
			Message{Kind: ErrorResponse, ID: IntID(3), Error: &Error{-32601, "no\n", raw(`{"a":"\u003c"}`)}}},
		{"error without id", `{"jsonrpc":"2.0","error":{"code":1,"message":""}}`,
			Message{Kind: ErrorResponse, Error: &Error{Code: 1}}},
		{"unknown members", `{"jsonrpc":"2.0","Method":"x","ID":7,"method":"m","_":{"a":[]},"é":1}`,
			Message{Kind: Notification, Method: "m"}},
		{"escaped names", `{"jsonrpc":"\u0032.0","\u006dethod":"m"}`,
			Message{Kind: Notification, Method: "m"}},
		{"deep enough", `{"jsonrpc":"2.0","method":"m","params":` + nested(999) + `}`,
			Message{Kind: Notification, Method: "m", Params: raw(nested(999))}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, parse := range []func([]byte) (Message, error){Parse, ParseLenient} {
				got, err := parse([]byte(tt.in))
				if err != nil {
					t.Fatal(err)
				}
				if d := cmp.Diff(tt.want, got, cmpMessage); d != "" {
					t.Error(d)
				}
				if string(got.Raw) != tt.in {
					t.Errorf("Raw = %s", got.Raw)
				}
			}
		})
	}
}

func TestParseRefuses(t *testing.T) {
	const head = `{"jsonrpc":"2.0","id":5,`
	for _, tt := range []struct {
		name, in string
		code     int64
		id       string // of the ParseError
	}{
		{"empty", ``, CodeParseError, ""},
		{"blank", " \n", CodeParseError, ""},
		{"cut", head + `"method":"m"`, CodeParseError, ""},
		{"trailing comma", head + `"method":"m",}`, CodeParseError, ""},
		{"trailing bytes", head + `"method":"m"} x`, CodeParseError, ""},
		{"two values", head + `"method":"m"}{}`, CodeParseError, ""},
		{"control character", head + "\"method\":\"a\nb\"}", CodeParseError, ""},
		{"duplicate id", head + `"id":5,"method":"m"}`, CodeParseError, ""},
		{"duplicate by escape", head + `"method":"m","m\u0065thod":"n"}`, CodeParseError, ""},
		{"lone surrogate in a name", head + `"method":"m","\ud800":1}`, CodeParseError, ""},
		{"duplicate unknown", head + `"method":"m","é":1,"\u00e9":2}`, CodeParseError, ""},
		{"bad UTF-8 in name", head + "\"method\":\"m\",\"\xff\":1}", CodeParseError, ""},
		{"array", `[` + head + `"method":"m"}]`, CodeInvalidRequest, ""},
		{"string", `"x"`, CodeInvalidRequest, ""},
		{"broken array", `[1`, CodeParseError, ""},
		{"array and more", `[] []`, CodeParseError, ""},
		{"empty object", `{}`, CodeInvalidRequest, ""},
		{"version absent", `{"id":5,"method":"m"}`, CodeInvalidRequest, "5"},
		{"version number", `{"jsonrpc":2.0,"id":5,"method":"m"}`, CodeInvalidRequest, "5"},
		{"version 1", `{"jsonrpc":"1.0","id":"x","method":"m"}`, CodeInvalidRequest, "x"},
		{"nothing but an id", `{"jsonrpc":"2.0","id":5}`, CodeInvalidRequest, "5"},
		{"method case", head + `"Method":"m"}`, CodeInvalidRequest, "5"},
		{"method no string", head + `"method":7}`, CodeInvalidRequest, "5"},
		{"params scalar", head + `"method":"m","params":"x"}`, CodeInvalidRequest, "5"},
		{"null id", `{"jsonrpc":"2.0","id":null,"method":"m"}`, CodeInvalidRequest, ""},
		{"notification with an id", `{"jsonrpc":"2.0","id":{},"method":"notifications/m"}`, CodeInvalidRequest, ""},
		{"fraction id", `{"jsonrpc":"2.0","id":1.5,"method":"m"}`, CodeInvalidRequest, ""},
		{"object id", `{"jsonrpc":"2.0","id":{},"method":"m"}`, CodeInvalidRequest, ""},
		{"method and result", head + `"method":"m","result":{}}`, CodeInvalidRequest, "5"},
		{"result and error", head + `"result":{},"error":{"code":1,"message":""}}`, CodeInvalidRequest, "5"},
		{"result without id", `{"jsonrpc":"2.0","result":{}}`, CodeInvalidRequest, ""},
		{"result null id", `{"jsonrpc":"2.0","id":null,"result":{}}`, CodeInvalidRequest, ""},
		{"error fraction id", `{"jsonrpc":"2.0","id":1.5,"error":{"code":1,"message":""}}`, CodeInvalidRequest, ""},
		{"error no object", head + `"error":"x"}`, CodeInvalidRequest, "5"},
		{"error null", head + `"error":null}`, CodeInvalidRequest, "5"},
		{"error without code", head + `"error":{"message":"x"}}`, CodeInvalidRequest, "5"},
		{"error code string", head + `"error":{"code":"1","message":"x"}}`, CodeInvalidRequest, "5"},
		{"error code with a fraction", head + `"error":{"code":1.5,"message":"x"}}`, CodeInvalidRequest, "5"},
		{"error code huge", head + `"error":{"code":9223372036854775808,"message":"x"}}`, CodeInvalidRequest, "5"},
		{"error message number", head + `"error":{"code":1,"message":1}}`, CodeInvalidRequest, "5"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, parse := range []func([]byte) (Message, error){Parse, ParseLenient} {
				checkParseError(t, parse, tt.in, tt.code, tt.id)
			}
		})
	}
}

func checkParseError(t *testing.T, parse func([]byte) (Message, error), in string, code int64, id string) {
	t.Helper()
	m, err := parse([]byte(in))
	var perr *ParseError
	if !errors.As(err, &perr) {
		t.Fatalf("got %+v, error %v", m, err)
	}
	if perr.Code != code || perr.ID.String() != id || perr.Error() == "" {
		t.Errorf("got code %d, id %q, %q; want code %d, id %q", perr.Code, perr.ID, perr.Reason, code, id)
	}
}

// A server waits for the answer of a client, and a client for that of a server.
func TestParseResponses(t *testing.T) {
	const head = `{"jsonrpc":"2.0","id":5,`
	for _, in := range []string{
		`{"jsonrpc":"2.0","id":null,"error":{"code":1,"message":""}}`,
		head + `"error":{"code":-32602.0,"message":""}}`,
		head + `"error":{"code":1}}`,
		head + `"error":{"code":1,"message":null}}`,
		head + `"result":{},"error":null}`,
		head + `"result":null,"error":{"code":1,"message":""}}`,
	} {
		for _, parse := range []func([]byte) (Message, error){Parse, ParseLenient} {
			if _, err := parse([]byte(in)); err != nil {
				t.Errorf("%s: %v", in, err)
			}
		}
	}
}

// What a client may not send, but a server may.
func TestParseLenient(t *testing.T) {
	const head = `{"jsonrpc":"2.0","id":5,`
	for _, tt := range []struct{ name, in string }{
		{"duplicates in the payload", head + `"result":{"a":1,"a":2}}`},
		{"bad UTF-8 in the payload", head + "\"result\":{\"a\":\"\xff\"}}"},
		{"lone surrogate in a name of the payload", head + `"result":{"\ud800":1}}`},
		{"duplicates in error data", head + `"error":{"code":1,"message":"","data":{"a":1,"a":2}}}`},
		{"bad UTF-8 in an unknown member", head + "\"result\":{},\"x\":\"\xff\"}"},
		{"nesting", head + `"result":` + nested(1000) + `}`},
		{"nesting and strings", head + `"result":["[{\"",` + nested(999) + `]}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := ParseLenient([]byte(tt.in)); err != nil {
				t.Error("lenient:", err)
			}
			if _, err := Parse([]byte(tt.in)); err == nil {
				t.Error("strict: accepted")
			}
		})
	}
	for _, tt := range []struct{ name, in string }{
		{"bad UTF-8 in the message", head + "\"error\":{\"code\":1,\"message\":\"\xff\"}}"},
		{"duplicate in the error", head + `"error":{"code":1,"message":"","code":2}}`},
		{"many names, then a duplicate", head + manyMembers(40) + `,"x20":1}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := ParseLenient([]byte(tt.in)); err == nil {
				t.Error("lenient: accepted")
			}
		})
	}
	if _, err := ParseLenient([]byte(head + `"result":1,` + manyMembers(40) + `}`)); err != nil {
		t.Error(err)
	}
}

func manyMembers(n int) string {
	var s []string
	for i := range n {
		s = append(s, `"x`+IntID(int64(i)).Raw()+`":0`)
	}
	return strings.Join(s, ",")
}

// Brackets inside strings are no nesting.
func TestDepthCountsStructureOnly(t *testing.T) {
	in := `{"jsonrpc":"2.0","method":"m","params":{"a":"` + strings.Repeat(`[\\\"{`, 3000) + `"}}`
	if _, err := Parse([]byte(in)); err != nil {
		t.Error(err)
	}
}
