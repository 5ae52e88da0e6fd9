package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// connectWithRoots begins a session of a client that has one root.
func (l *lab) connectWithRoots(ctx context.Context, version string, options *mcp.ClientOptions) (*client, error) {
	return l.connectAs(ctx, version, options, true, &mcp.Root{URI: "file:///a/root", Name: "a root"})
}

func tryLarge(ctx context.Context, c *crossing) (string, error) {
	const size = 20 << 20
	text, err := c.call(ctx, "try_large", map[string]any{"id": c.id, "bytes": size})
	if err == nil && len(text) != size/10*10 {
		err = fmt.Errorf("%d bytes came", len(text))
	}
	return "", err
}

// tryMeta sends _meta that only this client knows, and looks for that of the result.
func tryMeta(ctx context.Context, c *crossing) (string, error) {
	name, err := c.tool(ctx, "try_meta")
	if err != nil {
		return "", err
	}
	r, err := c.CallTool(ctx, &mcp.CallToolParams{
		Meta: mcp.Meta{"example.com/asked": "by the client"}, Name: name, Arguments: map[string]any{"id": c.id},
	})
	if err != nil {
		return "", err
	}
	reached, err := c.hasReached("begin", "by the client")
	if err != nil {
		return "", err
	}
	back := r.Meta["example.com/said"] == "by the server"
	switch {
	case reached && back:
		return "", nil
	case reached:
		return "that of the result is lost", nil
	case back:
		return "that of the call is lost", nil
	default:
		return "", errors.New("both are lost")
	}
}

// hasReached reports whether the server has noted an event of this call with a text in it.
func (c *crossing) hasReached(what, text string) (bool, error) {
	all, err := c.read()
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(all, func(e event) bool {
		return e.Event == what && e.ID == c.id && strings.Contains(string(e.More), text)
	}), nil
}

// tryNumbers sends and gets an integer that no float64 holds.
func tryNumbers(ctx context.Context, c *crossing) (string, error) {
	const exact = "9007199254740993"
	name, err := c.tool(ctx, "try_number")
	if err != nil {
		return "", err
	}
	args := json.RawMessage(`{"id":"` + c.id + `","number":` + exact + `}`)
	if _, err := c.CallTool(ctx, &mcp.CallToolParams{Name: name, Arguments: args}); err != nil {
		return "", err
	}
	reached, err := c.hasReached("arguments", exact)
	if err != nil {
		return "", err
	}
	back := c.wire.has(exact)
	switch {
	case reached && back:
		return "", nil
	case reached:
		return "the result is rounded", nil
	case back:
		return "the argument is rounded", nil
	default:
		return "", errors.New("both are rounded")
	}
}
