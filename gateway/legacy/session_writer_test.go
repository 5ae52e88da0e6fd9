package legacy

import "testing"

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
