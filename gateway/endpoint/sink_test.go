package endpoint

import (
	"encoding/json"
	"strings"
	"testing"

	"taskgate/shim"
)

// Under one token progress only rises, whatever the server says (protocol.md 2.9). Each new text is told.
func TestProgressRises(t *testing.T) {
	var got []string
	s := &Sink{Token: json.RawMessage(`"t"`), Notify: func(method string, params json.RawMessage) error {
		got = append(got, method+" "+string(params))
		return nil
	}}
	for _, n := range []string{"0", "2", "1", "2.0", "2.5", "-1", "1e1", "3", `0,"message":"a"`, `0,"message":"a"`, `0,"message":"b"`, `10,"message":"c"`, `11,"message":"c"`} {
		s.Progress(shim.Progress{Raw: json.RawMessage(`{"progress":` + n + `}`)})
	}
	var want []string
	for _, n := range []string{"0", "2", "2.5", "1e1", `10.0001,"message":"a"`, `10.0002,"message":"b"`, `10.0003,"message":"c"`, `11,"message":"c"`} {
		want = append(want, `notifications/progress {"progress":`+n+`,"progressToken":"t"}`)
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s", strings.Join(got, "\n"))
	}
}
