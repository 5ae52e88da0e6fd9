package jsonrpc

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestAppend(t *testing.T) {
	e := &Error{Code: -32603, Message: `no <"way">`}
	full := &Error{Code: 1, Message: "m", Data: json.RawMessage(`{"a":1.0}`)}
	for _, tt := range []struct {
		got  []byte
		want string
	}{
		{AppendRequest(nil, IntID(0), "m", nil), `{"jsonrpc":"2.0","id":0,"method":"m"}`},
		{AppendRequest([]byte("x"), ID{`"\u0061"`}, "m", []byte(`{"a": 1.0}`)), `x{"jsonrpc":"2.0","id":"\u0061","method":"m","params":{"a": 1.0}}`},
		{AppendNotification(nil, "m", []byte(`{}`)), `{"jsonrpc":"2.0","method":"m","params":{}}`},
		{AppendResult(nil, StringID("a"), []byte(`[1.0]`)), `{"jsonrpc":"2.0","id":"a","result":[1.0]}`},
		{AppendResult(nil, StringID("a"), nil), `{"jsonrpc":"2.0","id":"a","result":{}}`},
		{AppendError(nil, IntID(1), e), `{"jsonrpc":"2.0","id":1,"error":{"code":-32603,"message":"no <\"way\">"}}`},
		{AppendError(nil, ID{}, full), `{"jsonrpc":"2.0","error":{"code":1,"message":"m","data":{"a":1.0}}}`},
		{AppendErrorNullID(nil, full), `{"jsonrpc":"2.0","id":null,"error":{"code":1,"message":"m","data":{"a":1.0}}}`},
		{AppendString(nil, "<&>\u2028é\n\xff"), "\"<&>\u2028é\\n\ufffd\""},
	} {
		if string(tt.got) != tt.want {
			t.Errorf("got  %s\nwant %s", tt.got, tt.want)
		}
	}
	if e.Error() != `no <"way"> (-32603)` {
		t.Error(e)
	}
}

// What is appended is what is parsed.
func TestAppendParse(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		id := rapid.OneOf(
			rapid.Map(rapid.String(), StringID),
			rapid.Map(rapid.Int64(), IntID),
		).Draw(t, "id")
		method := rapid.String().Draw(t, "method")
		payload := json.RawMessage(drawObject(t))
		echoed := TextID(id.String()) // as the id of a response is read
		e := &Error{Code: rapid.Int64().Draw(t, "code"), Message: method, Data: payload}
		for _, tt := range []struct {
			text []byte
			want Message
		}{
			{AppendRequest(nil, id, method, payload), Message{Kind: Request, ID: id, Method: method, Params: payload}},
			{AppendNotification(nil, method, payload), Message{Kind: Notification, Method: method, Params: payload}},
			{AppendResult(nil, id, payload), Message{Kind: Result, ID: echoed, Result: payload}},
			{AppendError(nil, id, e), Message{Kind: ErrorResponse, ID: echoed, Error: e}},
		} {
			got, err := Parse(tt.text)
			if err != nil {
				t.Fatalf("%s: %v", tt.text, err)
			}
			if d := cmp.Diff(tt.want, got, cmpMessage); d != "" {
				t.Fatal(d)
			}
		}
	})
}

func TestKindString(t *testing.T) {
	for k, want := range map[Kind]string{0: "invalid", Request: "request", ErrorResponse: "error response", 9: "invalid"} {
		if k.String() != want {
			t.Errorf("Kind(%d) = %s", k, k)
		}
	}
}
