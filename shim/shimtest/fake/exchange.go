package fake

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"
)

// Exchange is one request in the hands of a Behaviour.
type Exchange struct {
	W      http.ResponseWriter
	R      *http.Request
	ID     json.RawMessage
	Method string
	Params json.RawMessage

	s       *Server
	session *session
	body    []byte
	stream  *stream // of a resumable answer
	headed  bool
}

// Arg is a string argument of a tools/call.
func (x *Exchange) Arg(name string) string {
	var p struct {
		Arguments map[string]any `json:"arguments"`
	}
	_ = json.Unmarshal(x.Params, &p)
	v, _ := p.Arguments[name].(string)
	return v
}

// Token is the progress token of the request, as JSON.
func (x *Exchange) Token() string {
	var p struct {
		Meta struct {
			Token json.RawMessage `json:"progressToken"`
		} `json:"_meta"`
	}
	_ = json.Unmarshal(x.Params, &p)
	return string(p.Meta.Token)
}

// Run records that the tool has begun, under the argument "key".
func (x *Exchange) Run() {
	x.s.mu.Lock()
	defer x.s.mu.Unlock()
	x.s.runs[x.Arg("key")]++
}

// Head begins the response, with status 200.
func (x *Exchange) Head(contentType string) {
	x.W.Header().Set("Content-Type", contentType)
	x.W.WriteHeader(http.StatusOK)
	x.headed = true
	x.flush()
}

func (x *Exchange) flush() { _ = http.NewResponseController(x.W).Flush() }

func (x *Exchange) write(text string) {
	_, _ = io.WriteString(x.W, text)
	x.flush()
}

// Event sends an event without an id, beginning a stream if need be.
func (x *Exchange) Event(data string) {
	if !x.headed {
		x.Head("text/event-stream")
	}
	x.write("data: " + data + "\n\n")
}

// Comment sends a line that means nothing.
func (x *Exchange) Comment() {
	if !x.headed {
		x.Head("text/event-stream")
	}
	x.write(": still here\n\n")
}

// Result is the final response as JSON text.
func (x *Exchange) Result(result string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":%s}`, x.ID, result)
}

// Progress is a progress notification for the request as JSON text.
func (x *Exchange) Progress(n int, message string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%s,"progress":%d,"total":10,"message":%q}}`, x.Token(), n, message)
}

// Ask sends a request on the stream of the call and returns the client's answer;
// nil once the exchange is over. id is JSON.
func (x *Exchange) Ask(id, method, params string) json.RawMessage {
	ch := x.s.expect(id)
	x.send(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":%q,"params":%s}`, id, method, params))
	return x.Await(ch)
}

// Expect says that an answer to a request of the server is to come.
func (x *Exchange) Expect(id string) <-chan json.RawMessage { return x.s.expect(id) }

// Await waits for such an answer.
func (x *Exchange) Await(ch <-chan json.RawMessage) json.RawMessage {
	select {
	case b := <-ch:
		return b
	case <-x.s.closing:
		return nil
	}
}

// send sends an event on whatever stream the answer has.
func (x *Exchange) send(data string) {
	if x.stream != nil {
		x.stream.add("", data)
		return
	}
	x.Event(data)
}

// Resumable makes the answer a stream with event ids that outlives the response.
// The first event primes the client (SEP-1699), with a retry time if that is not
// 0. work runs in the background; the response is cut after cut events, if that
// is not 0.
func (x *Exchange) Resumable(retry time.Duration, cut int, work func(send func(data string))) {
	x.stream = x.s.newStream(x.session)
	extra := ""
	if retry > 0 {
		extra = fmt.Sprintf("retry: %d\n", retry.Milliseconds())
	}
	x.stream.add(extra, "")
	go func() {
		work(func(data string) { x.stream.add("", data) })
		x.stream.end()
	}()
	x.Head("text/event-stream")
	if cut == 0 {
		x.stream.follow(x, 0)
		return
	}
	x.stream.upTo(x, cut)
}

// upTo writes the first n events and returns.
func (st *stream) upTo(x *Exchange, n int) {
	for i := 0; i < n; {
		st.mu.Lock()
		log, change := st.log, st.change
		st.mu.Unlock()
		if i < len(log) {
			x.write(log[i].text)
			i++
			continue
		}
		select {
		case <-change:
		case <-x.R.Context().Done():
			return
		}
	}
}

// Cut breaks the connection without ending the response.
func (x *Exchange) Cut() { panic(http.ErrAbortHandler) }

// Hang waits until the client or the server is gone, and reports whether it was
// the client.
func (x *Exchange) Hang() bool {
	select {
	case <-x.R.Context().Done():
		return true
	case <-x.s.closing:
		return false
	}
}
