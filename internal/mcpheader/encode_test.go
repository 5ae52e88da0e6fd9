package mcpheader

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"unicode/utf8"
)

func TestEncode(t *testing.T) {
	for _, tt := range []struct{ in, want string }{
		{"us-west1", "us-west1"},
		{"", ""},
		{"two words\tand a tab", "two words\tand a tab"},
		{"!~", "!~"},
		{"file:///a%20b", "file:///a%20b"},
		{"Hello, 世界", "=?base64?SGVsbG8sIOS4lueVjA==?="},
		{" padded ", "=?base64?IHBhZGRlZCA=?="},
		{"\ttab", "=?base64?CXRhYg==?="},
		{" ", "=?base64?IA==?="},
		{"line1\nline2", "=?base64?bGluZTEKbGluZTI=?="},
		{"\x7f", "=?base64?fw==?="},
		{"=?base64?x?=", "=?base64?PT9iYXNlNjQ/eD89?="},
		{"=?base64??=", "=?base64?PT9iYXNlNjQ/Pz0=?="},
		{"=?base64?=", "=?base64?="}, // too short to be the form: the markers would overlap
		{"=?BASE64?x?=", "=?BASE64?x?="},
		{"=?base64?x", "=?base64?x"},
	} {
		got := Encode(tt.in)
		if got != tt.want {
			t.Errorf("Encode(%q) = %q, want %q", tt.in, got, tt.want)
		}
		if back, err := Decode(got); back != tt.in || err != nil {
			t.Errorf("Decode(%q) = %q, %v; want %q", got, back, err, tt.in)
		}
	}
}

func TestDecode(t *testing.T) {
	for _, tt := range []struct {
		in, want string
		err      error
	}{
		{" \tplain \t", "plain", nil},
		{" =?base64?YQ==?= ", "a", nil},
		{"=?base64??=", "", nil},
		{"=?Base64?YQ==?=", "=?Base64?YQ==?=", nil},
		{"=?base64?YQ?=", "", errBase64},   // padding is required
		{"=?base64?YR==?=", "", errBase64}, // stray bits: one value, one spelling
		{"=?base64?Y Q==?=", "", errBase64},
		{"=?base64?_-8=?=", "", errBase64}, // the URL alphabet is another encoding
		{"=?base64?%%?=", "", errBase64},
		{"=?base64?/w==?=", "", errUTF8},
		{"é", "", errChars},
		{"a\nb", "", errChars},
		{"a\x00", "", errChars},
		{"\x7f", "", errChars},
	} {
		if got, err := Decode(tt.in); got != tt.want || err != tt.err {
			t.Errorf("Decode(%q) = %q, %v; want %q, %v", tt.in, got, err, tt.want, tt.err)
		}
	}
}

// An encoded value gets through a real HTTP connection.
func TestEncodedTravels(t *testing.T) {
	values := []string{"a", "", " a", "a\r\nX-Evil: 1", "\x00", "世界", "=?base64?a?=", "\t"}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for _, v := range r.Header["Mcp-Param-V"] {
			w.Header().Add("Got", v)
		}
	}))
	defer srv.Close()
	req, err := http.NewRequest("POST", srv.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range values {
		req.Header.Add("Mcp-Param-V", Encode(v))
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	for i, v := range res.Header["Got"] {
		if got, err := Decode(v); got != values[i] || err != nil {
			t.Errorf("sent %q, got %q, %v", values[i], got, err)
		}
	}
	if n := len(res.Header["Got"]); n != len(values) {
		t.Errorf("%d values, sent %d", n, len(values))
	}
}

// FuzzDecode: every text survives, as characters that any HTTP library sends;
// what is not text is refused, not changed; and any header value that is read
// has one meaning.
func FuzzDecode(f *testing.F) {
	for _, s := range []string{"", "a", " a", "é", "\xff", "=?base64?YQ==?=", "=?base64??=", "=?base64?=", "a\tb\n"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		enc := Encode(s)
		if !isPlain(enc) || enc != trim(enc) {
			t.Errorf("Encode(%q) = %q", s, enc)
		}
		got, err := Decode(enc)
		switch {
		case utf8.ValidString(s) && (err != nil || got != s):
			t.Errorf("Decode(Encode(%q)) = %q, %v", s, got, err)
		case !utf8.ValidString(s) && err == nil:
			t.Errorf("Decode(Encode(%q)) = %q, want an error", s, got)
		}
		if v, err := Decode(s); err == nil && !utf8.ValidString(v) {
			t.Errorf("Decode(%q) = %q", s, v)
		}
	})
}
