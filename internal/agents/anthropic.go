package agents

import (
	"encoding/json"
	"strings"
)

// object is a JSON object that is written.
type object = map[string]any

// block is a part of a message: of all APIs, with the members that any of them has.
type block struct {
	Type    string
	Text    string
	Content json.RawMessage // of a result: a string or blocks
}

// readBlocks reads what is either a string or a list of blocks.
func readBlocks(raw json.RawMessage) (r Result) {
	var text string
	if json.Unmarshal(raw, &text) == nil {
		return Result{Text: text}
	}
	var blocks []block
	_ = json.Unmarshal(raw, &blocks)
	var texts []string
	for _, b := range blocks {
		switch {
		case strings.Contains(b.Type, "image"):
			r.Images++
		case b.Text != "":
			texts = append(texts, b.Text)
		}
	}
	r.Text = strings.Join(texts, "\n")
	return r
}

func readAnthropic(body []byte) (t Turn) {
	var r struct {
		Tools    []struct{ Name string }
		Messages []struct{ Content json.RawMessage }
	}
	_ = json.Unmarshal(body, &r)
	for _, tool := range r.Tools {
		t.Tools = append(t.Tools, tool.Name)
	}
	for _, m := range r.Messages {
		var blocks []block
		_ = json.Unmarshal(m.Content, &blocks)
		for _, b := range blocks {
			switch {
			case b.Type == "tool_result":
				t.Results = append(t.Results, readBlocks(b.Content))
			case strings.Contains(b.Text, "<task-notification>"): // Claude Code's result of a task
				t.Results = append(t.Results, Result{Text: b.Text})
			}
		}
	}
	return t
}

func writeAnthropic(e *events, c *Call) {
	content, reason := object{"type": "text", "text": e.word}, "end_turn"
	empty, delta := object{"type": "text", "text": ""}, object{"type": "text_delta", "text": e.word}
	if c != nil {
		id := callID()
		content, reason = object{"type": "tool_use", "id": id, "name": c.Tool, "input": c.Args}, "tool_use"
		empty = object{"type": "tool_use", "id": id, "name": c.Tool, "input": object{}}
		delta = object{"type": "input_json_delta", "partial_json": encode(c.Args)}
	}
	usage := object{"input_tokens": 100, "output_tokens": 10}
	message := object{"id": "msg_1", "type": "message", "role": "assistant", "model": "scripted", "usage": usage}
	if !e.stream {
		message["content"], message["stop_reason"] = []any{content}, reason
		writeJSON(e.w, message)
		return
	}
	message["content"] = []any{}
	e.send("message_start", object{"type": "message_start", "message": message})
	e.send("content_block_start", object{"type": "content_block_start", "index": 0, "content_block": empty})
	e.send("content_block_delta", object{"type": "content_block_delta", "index": 0, "delta": delta})
	e.send("content_block_stop", object{"type": "content_block_stop", "index": 0})
	e.send("message_delta", object{"type": "message_delta", "delta": object{"stop_reason": reason}, "usage": usage})
	e.send("message_stop", object{"type": "message_stop"})
}
