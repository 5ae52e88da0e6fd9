package nativetasks

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"taskgate/internal/mcp"
)

// HTTP serves what is about tasks, and leaves the rest to the handler of the SDK.
func (s *Server) HTTP(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		m, err := jsonrpc.DecodeMessage(body)
		req, ok := m.(*jsonrpc.Request)
		if err != nil || !ok || !req.IsCall() {
			next.ServeHTTP(w, r)
			return
		}
		resp := s.Serve(req)
		if resp == nil {
			next.ServeHTTP(w, r)
			return
		}
		text, err := jsonrpc.EncodeMessage(resp)
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", mcp.TypeJSON)
		var refusal *jsonrpc.Error
		if errors.As(resp.Error, &refusal) && refusal.Code == sdk.CodeMissingRequiredClientCapabilities {
			w.WriteHeader(http.StatusBadRequest)
		}
		_, _ = w.Write(text)
	})
}

// Transport is a transport of the SDK on which what is about tasks is answered.
func (s *Server) Transport(t sdk.Transport) sdk.Transport { return transport{t, s} }

type transport struct {
	sdk.Transport
	s *Server
}

// Connect connects the transport.
func (t transport) Connect(ctx context.Context) (sdk.Connection, error) {
	c, err := t.Transport.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return connection{c, t.s}, nil
}

type connection struct {
	sdk.Connection
	s *Server
}

// Read returns the next message that is for the SDK.
func (c connection) Read(ctx context.Context) (jsonrpc.Message, error) {
	for {
		m, err := c.Connection.Read(ctx)
		req, ok := m.(*jsonrpc.Request)
		if err != nil || !ok || !req.IsCall() {
			return m, err
		}
		resp := c.s.Serve(req)
		if resp == nil {
			return m, nil
		}
		if err := c.Write(ctx, resp); err != nil {
			return nil, err
		}
	}
}
