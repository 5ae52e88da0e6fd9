package fake

import (
	"fmt"
	"net/http"
	"strings"
)

// Result answers with a result, as JSON.
func Result(result string) Behaviour {
	return func(x *Exchange) {
		x.Run()
		x.Head("application/json")
		x.write(x.Result(result))
	}
}

// RPCError answers with a JSON-RPC error under an HTTP status. Data is JSON or
// empty.
func RPCError(status, code int, message, data string) Behaviour {
	if data != "" {
		data = `,"data":` + data
	}
	return func(x *Exchange) {
		x.W.Header().Set("Content-Type", "application/json")
		x.W.WriteHeader(status)
		x.write(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"error":{"code":%d,"message":%q%s}}`, x.ID, code, message, data))
	}
}

// Status answers with a bare HTTP status. Header are names and values in turn.
func Status(status int, contentType, body string, header ...string) Behaviour {
	return func(x *Exchange) {
		for i := 0; i+1 < len(header); i += 2 {
			x.W.Header().Set(header[i], header[i+1])
		}
		if contentType != "" {
			x.W.Header().Set("Content-Type", contentType)
		}
		x.W.WriteHeader(status)
		x.write(body)
	}
}

// HTML answers with a page, as a proxy in between would.
func HTML() Behaviour { return Body("text/html", "<html><body>Welcome</body></html>") }

// Body runs the tool and answers with these bytes under status 200.
func Body(contentType, body string) Behaviour {
	return func(x *Exchange) {
		x.Run()
		x.Head(contentType)
		x.write(body)
	}
}

// Text is a tool that answers with a text block, as JSON.
func Text(text string) Behaviour {
	return Result(fmt.Sprintf(`{"resultType":"complete","content":[{"type":"text","text":%q}]}`, text))
}

// Stream is a tool that answers with these events. {id} and {token} in them stand
// for the request's.
func Stream(events ...string) Behaviour {
	return func(x *Exchange) {
		x.Run()
		for _, e := range events {
			x.Event(x.Fill(e))
		}
		if !x.headed {
			x.Head("text/event-stream")
		}
	}
}

// Fill puts the request's id and token in place of {id} and {token}.
func (x *Exchange) Fill(s string) string {
	return strings.NewReplacer("{id}", string(x.ID), "{token}", x.Token()).Replace(s)
}

// Truncated answers with the first half of a JSON body, and cuts the connection.
func Truncated() Behaviour {
	return func(x *Exchange) {
		x.Run()
		x.Head("application/json")
		text := x.Result(`{"content":[]}`)
		x.write(text[:len(text)/2])
		x.Cut()
	}
}

// Hanging is a tool that never answers. It reports on gone, if that is not nil,
// when the connection is closed by the client.
func Hanging(gone chan<- struct{}) Behaviour {
	return func(x *Exchange) {
		x.Run()
		if x.Hang() && gone != nil {
			gone <- struct{}{}
		}
	}
}

// Redirect sends the client elsewhere with a 307, which would carry the body
// along.
func Redirect(to string) Behaviour {
	return Status(http.StatusTemporaryRedirect, "", "", "Location", to)
}
