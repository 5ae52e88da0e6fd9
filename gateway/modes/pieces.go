package modes

import (
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"time"

	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/shim"
	"taskgate/shim/content"
	"taskgate/shim/dialect"
)

// firstWait is how long the first answer to a streaming call waits for a block to go along with the
// task.
const firstWait = 50 * time.Millisecond

// errEnough ends the following of a task.
var errEnough = errors.New("enough")

// pieces are the blocks that one task has streamed, as one request reads them. The number of a
// block (seqNr) is its place among all blocks of the partial results, from 1.
type pieces struct {
	r       Request
	id      shim.ID
	streams bool // its partial results are blocks of the result

	from   int64 // the next partial result
	cut    bool  // blocks were left out: the result has the rest
	blocks []json.RawMessage
	sent   int       // how many blocks the client has
	task   shim.Task // its newest state
}

func (p *pieces) hasEnded() bool { return p.task.Status.Final() }

// follow reads what the task streams until its end. It ends before that with the error of atBlocks, which is called
// when there are more blocks, or with atState when the state of the task is read.
func (p *pieces) follow(ctx context.Context, atState error, atBlocks func() error) error {
	k := shim.Tracked{ID: p.id, From: p.from, Pieces: p.streams}
	err := p.r.Endpoint.Shim.Track(ctx, p.r.Principal, p.r.Endpoint.Name, []shim.Tracked{k}, func(u shim.Update) error {
		if u.Task != nil {
			p.task = *u.Task
			return atState
		}
		p.from = u.First + int64(len(u.Pieces))
		for _, batch := range u.Pieces {
			p.takeBlocks(batch)
		}
		return atBlocks()
	})
	if err == nil && !p.hasEnded() {
		return shim.ErrNotFound
	}
	return err
}

// takeBlocks takes the blocks of a partial result, up to the first place where blocks were left out: the
// result has the rest.
func (p *pieces) takeBlocks(batch json.RawMessage) {
	for b := range jsonrpc.Elements(batch) {
		if p.cut = p.cut || content.IsLeftOut(b); !p.cut {
			p.blocks = append(p.blocks, b)
		}
	}
}

// awaitOutcome is the answer to a tasks/result, once the task has ended.
func (p *pieces) awaitOutcome(ctx context.Context) (json.RawMessage, error) {
	return p.r.Serve(ctx, mcp.MethodTasksResult, dialect.Legacy.Named(p.id))
}

// makeResponse is the next response: the task, if this request created it, and the blocks that the client
// lacks (A9). Once the task has ended, it is the last response, with what the result adds. A
// failure before the first block has its reason as content (A14).
func (p *pieces) makeResponse(ctx context.Context, created json.RawMessage) (json.RawMessage, error) {
	all := p.blocks
	if p.task.Status == shim.Completed {
		result, err := p.awaitOutcome(ctx)
		if err != nil {
			return nil, err
		}
		_, added := content.Merge(result, p.blocks)
		all = append(all[:len(all):len(all)], added...)
	}
	failed := p.task.Status == shim.Failed || p.task.ToolError
	var list []json.RawMessage
	for i := p.sent; i < len(all); i++ {
		list = append(list, jsonrpc.With(all[i], strconv.AppendInt(nil, int64(i)+1, 10), "seqNr"))
	}
	if created != nil && len(list) == 0 && !p.hasEnded() {
		return created, nil
	}
	response := created
	if created == nil {
		response = json.RawMessage(`{}`)
	}
	if failed && p.sent == 0 && len(list) == 0 {
		response = jsonrpc.With(response, jsonrpc.Array([]json.RawMessage{content.Text(p.task.StatusMessage)}), "content")
	} else {
		response = jsonrpc.With(response, jsonrpc.Array(list), "partial-content")
	}
	p.sent = max(p.sent, len(all))
	response = jsonrpc.With(response, strconv.AppendBool(nil, p.hasEnded()), "isComplete")
	response = jsonrpc.With(response, strconv.AppendBool(nil, failed), "isError")
	if created == nil {
		response = dialect.Legacy.Related(response, p.id)
	}
	return response, nil
}
