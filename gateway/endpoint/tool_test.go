package endpoint

import (
	"context"
	"errors"
	"testing"

	"taskgate/gateway/upstream"
	"taskgate/internal/mcp"
	"taskgate/shim"
)

// unlisted is an upstream whose tools cannot be listed.
type unlisted struct{ upstream.Client }

func (unlisted) Tool(context.Context, shim.Session, string) (upstream.Tool, bool, error) {
	return upstream.Tool{}, false, errors.New("no list")
}

// A call goes as it is where the tools cannot be listed.
func TestCheckToolWithoutAList(t *testing.T) {
	e := &Endpoint{Upstream: unlisted{}}
	fits := func(upstream.Tool) error { return errors.New("never asked") }
	if err := e.CheckTool(t.Context(), shim.Session{}, upstream.Description{Era: mcp.Modern}, "t", true, fits); err != nil {
		t.Error(err)
	}
}
