package transporttest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"taskgate/gateway/upstream/transport"
	"taskgate/internal/jsonrpc"
)

// Must ends a test at an error.
func Must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Message is the message of a JSON text, in a session; "" for none.
func Message(session, text string) *transport.Outgoing {
	m := &transport.Outgoing{Body: []byte(text), Session: session, Sender: transport.Nobody{}}
	if said, err := jsonrpc.ParseLenient(bytes.Clone(m.Body)); err == nil && said.Kind == jsonrpc.Request {
		m.ID, m.Method, m.Params = said.ID, said.Method, said.Params
	}
	return m
}

// Send sends a message. There is no stream for what is not answered.
func Send(ctx context.Context, to transport.Carrier, m *transport.Outgoing) (transport.Stream, error) {
	if m.Method == "" {
		return nil, to.Notify(ctx, m)
	}
	return to.Request(ctx, m)
}

// StatusOf is the HTTP status that an error stands for; 200 for none, 0 for another error.
func StatusOf(err error) int {
	if err == nil {
		return http.StatusOK
	}
	if se, ok := err.(*transport.StatusError); ok {
		return se.Status
	}
	return 0
}

// ReadAll reads a stream until it ends, and closes it: the texts of its messages, one in a line. The end is no error.
func ReadAll(in transport.Stream) (string, error) {
	defer in.Close()
	var all strings.Builder
	for {
		m, err := Read(in)
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return all.String(), err
		}
		all.Write(m.Raw)
		all.WriteByte('\n')
	}
}

// Read reads the next message, which stays valid.
func Read(in transport.Stream) (jsonrpc.Message, error) {
	for {
		e := in.Next()
		switch {
		case e.Err != nil:
			return jsonrpc.Message{}, e.Err
		case e.Message.Raw != nil:
			return jsonrpc.ParseLenient(bytes.Clone(e.Message.Raw))
		}
	}
}
