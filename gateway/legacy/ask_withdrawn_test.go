package legacy_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"taskgate/internal/mcp"
	"taskgate/shim/shimtest/fake"
)

// A server asks two things together and takes one back: the client is told, and its answer to the other one ends the call.
func TestOneOfTheQuestionsIsTakenBack(t *testing.T) {
	s := fake.New(t, fake.Stateful)
	both := make(chan struct{})
	s.Tool("t", func(x *fake.Exchange) {
		first := x.Expect(`1`)
		x.Event(`{"jsonrpc":"2.0","id":1,"method":"elicitation/create","params":{"message":"first"}}`)
		x.Event(`{"jsonrpc":"2.0","id":2,"method":"elicitation/create","params":{"message":"second"}}`)
		<-both
		x.Event(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":2}}`)
		x.Await(first)
		x.Event(x.Fill(`{"jsonrpc":"2.0","id":{id},"result":{"content":[{"type":"text","text":"done"}]}}`))
	})
	c := newRawClient(t, newBefore(t, s, nil)).initialize(canBeAsked)
	stream := openSSE(t, c, http.MethodPost, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"t"}}`, "")
	defer stream.close()
	asked := map[string]string{} // their ids
	for {
		_, data, ok := stream.event()
		if !ok {
			t.Fatal("the stream has ended")
		}
		var m struct {
			ID, Method string
			Params     struct{ Message, RequestID string }
		}
		_ = json.Unmarshal([]byte(data), &m) // of the answer the id is a number
		switch {
		case m.Method == mcp.MethodElicit:
			if asked[m.Params.Message] = m.ID; len(asked) == 2 {
				close(both)
			}
		case m.Method == mcp.NotifyCancelled:
			if m.Params.RequestID != asked["second"] {
				t.Errorf("%s is taken back", data)
			}
			c.wantPost(`{"jsonrpc":"2.0","id":"`+asked["first"]+`","result":{"action":"decline"}}`, http.StatusAccepted)
		case strings.Contains(data, `"done"`):
			return
		}
	}
}

// A client that resumes an answer of which it has all is told to stop: the TypeScript SDK 1.32.2 comes back
// for more after each error on a stream with ids. A client without a GET stream gets that, also for an answer
// that was cleared long ago.
func TestResumedThoughHeard(t *testing.T) {
	s := fake.New(t, fake.Stateful)
	s.Tool("t", func(x *fake.Exchange) {
		answered := x.Expect(`1`)
		x.Event(`{"jsonrpc":"2.0","id":1,"method":"elicitation/create","params":{"message":"first"}}`)
		x.Await(answered)
		x.Event(x.Fill(`{"jsonrpc":"2.0","id":{id},"error":{"code":-32602,"message":"no"}}`))
	})
	c := newRawClient(t, newBefore(t, s, nil))
	c.initialize(canBeAsked)
	stream := openSSE(t, c, http.MethodPost, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"t"}}`, "")
	last := ""
	for id, data, ok := stream.event(); ok; id, data, ok = stream.event() {
		var m struct{ ID, Method string }
		_ = json.Unmarshal([]byte(data), &m) // of the answer the id is a number
		if last = id; m.Method == mcp.MethodElicit {
			c.post(`{"jsonrpc":"2.0","id":"` + m.ID + `","result":{"action":"decline"}}`)
		}
	}
	get := c.takeStream()
	openSSE(t, c, http.MethodGet, "", last).wantStatus(http.StatusNoContent)
	for _, id := range []string{last, "forgotten.7"} {
		get.close()
		waitUntil(t, "the GET stream in its place", func() bool {
			get = openSSE(t, c, http.MethodGet, "", id)
			return get.resp.StatusCode == http.StatusOK
		})
		openSSE(t, c, http.MethodGet, "", "").wantStatus(http.StatusConflict)
	}
	openSSE(t, c, http.MethodGet, "", strings.TrimRight(last, "0123456789")+"0").wantStatus(http.StatusOK)
}
