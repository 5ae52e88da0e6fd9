package gateway

import (
	"bytes"
	"fmt"
	"testing"
)

func contents(o *outbox) []string {
	var out []string
	for {
		m, ok := o.take()
		if !ok {
			return out
		}
		out = append(out, string(m.text))
	}
}

func TestOutboxOrder(t *testing.T) {
	o := newOutbox()
	for _, m := range []string{"a", "b", "a", "c"} {
		o.put([]byte(m))
	}
	m, _ := o.take()
	o.giveBack(m)
	if got := fmt.Sprint(contents(o)); got != "[a b c]" {
		t.Errorf("%s", got)
	}
	o.put([]byte("a"))
	if got := fmt.Sprint(contents(o)); got != "[a]" || !o.empty() {
		t.Errorf("what was sent can be said again: %s", got)
	}
}

func TestOutboxBounds(t *testing.T) {
	o := newOutbox()
	for i := range outboxMessages + 10 {
		o.put(fmt.Append(nil, i))
	}
	if got := contents(o); len(got) != outboxMessages || got[0] != "10" {
		t.Errorf("%d messages, the first is %s", len(got), got[0])
	}
	big := func(c byte) []byte { return bytes.Repeat([]byte{c}, outboxBytes/2+1) }
	o.put(big('a'))
	o.put(big('b'))
	if got := contents(o); len(got) != 1 || got[0][0] != 'b' {
		t.Errorf("%d large messages", len(got))
	}
	o.put(bytes.Repeat([]byte("x"), 2*outboxBytes)) // one is kept, whatever its size
	if got := contents(o); len(got) != 1 {
		t.Errorf("%d messages", len(got))
	}
	if o.size != 0 {
		t.Errorf("size %d when empty", o.size)
	}
}

// A request that is over before it went out never does; of one that did, the client is
// told. What a stream has not been sent is asked anew by the next one.
func TestOutboxRequests(t *testing.T) {
	o := newOutbox()
	o.putRequest("a", []byte("ask a"))
	o.putRequest("b", []byte("ask b"))
	o.putOver("a", []byte("over a"))
	if got := fmt.Sprint(contents(o)); got != "[ask b]" {
		t.Errorf("%s", got)
	}
	o.putOver("b", []byte("over b"))
	o.putRequest("c", []byte("ask c"))
	o.put([]byte("changed"))
	o.putLatest("task", []byte("state"))
	o.forgetRequests()
	if got := fmt.Sprint(contents(o)); got != "[over b changed state]" || o.size != 0 {
		t.Errorf("%s, size %d", got, o.size)
	}
}
