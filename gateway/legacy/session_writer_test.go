package legacy

import (
	"net/http/httptest"
	"strings"
	"testing"

	"taskgate/internal/eventstream"
)

// Of messages in a row that the store has forgotten a client hears once, also where nothing follows them.
func TestForgottenMessagesAreToldOnce(t *testing.T) {
	for _, log := range [][]logEntry{
		{{1, nil}, {2, nil}, {3, nil}, {4, []byte(`{"id":1}`)}},
		{{1, nil}, {2, nil}, {3, nil}},
	} {
		table, _ := newTable(newBrokenSessions(t, false))
		out := httptest.NewRecorder()
		w := &writer{s: newSession(table, "s"), name: "x", kept: true, out: eventstream.NewWriter(out, eventstream.Options{})}
		w.sendMore(t.Context(), nil, log)
		if n := strings.Count(out.Body.String(), "messages may be missing"); n != 1 {
			t.Errorf("it is told %d times:\n%s", n, out.Body)
		}
	}
}

// A client that counts and begins anew gets no id from before its mark: from such an id it
// would be resumed as the client before it, which has had more.
func TestNoIDsBeforeTheMark(t *testing.T) {
	const mark = 5
	for _, c := range []struct {
		w    writer
		no   int64
		want string
	}{
		{writer{name: "get", kept: true, count: &seqFilter{last: mark}}, mark - 1, ""},
		{writer{name: "get", kept: true, count: &seqFilter{last: mark}}, mark, "get.5"},
		{writer{name: "get", kept: true, resumed: true, count: &seqFilter{last: mark}}, mark - 1, "get.4"},
		{writer{name: "get", kept: true}, mark - 1, "get.4"},
		{writer{name: "get"}, mark, ""},
	} {
		if got := c.w.eventID(c.no); got != c.want {
			t.Errorf("message %d of %+v has the id %q, want %q", c.no, c.w, got, c.want)
		}
	}
}
