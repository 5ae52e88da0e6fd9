package agents

import (
	"encoding/json"
	"strings"
)

func readResponses(body []byte) (t Turn) {
	var r struct {
		Tools []struct {
			Name  string
			Tools []struct{ Name string } // of a namespace
		}
		Input []struct {
			Type   string
			Output json.RawMessage
		}
	}
	_ = json.Unmarshal(body, &r)
	for _, tool := range r.Tools {
		t.Tools = append(t.Tools, tool.Name)
		for _, inner := range tool.Tools {
			t.Tools = append(t.Tools, tool.Name+" "+inner.Name)
		}
	}
	for _, item := range r.Input {
		if item.Type == "function_call_output" {
			t.Results = append(t.Results, readBlocks(item.Output))
		}
	}
	return t
}

func writeResponses(e *events, c *Call) {
	item := object{"type": "message", "id": "item_1", "role": "assistant", "content": []any{object{"type": "output_text", "text": e.word}}}
	if c != nil {
		item = object{"type": "function_call", "id": "item_1", "call_id": callID(), "name": c.Tool, "arguments": encode(c.Args)}
		if space, name, ok := strings.Cut(c.Tool, " "); ok {
			item["namespace"], item["name"] = space, name
		}
	}
	response := object{"id": "resp_1", "object": "response", "status": "completed", "output": []any{item},
		"usage": object{"input_tokens": 100, "output_tokens": 10, "total_tokens": 110}}
	if !e.stream {
		writeJSON(e.w, response)
		return
	}
	e.send("response.created", object{"type": "response.created", "response": object{"id": "resp_1"}})
	e.send("response.output_item.done", object{"type": "response.output_item.done", "output_index": 0, "item": item})
	e.send("response.completed", object{"type": "response.completed", "response": response})
}

func readCompletions(body []byte) (t Turn) {
	var r struct {
		Tools    []struct{ Function struct{ Name string } }
		Messages []struct {
			Role    string
			Content json.RawMessage
		}
	}
	_ = json.Unmarshal(body, &r)
	for _, tool := range r.Tools {
		t.Tools = append(t.Tools, tool.Function.Name)
	}
	for _, m := range r.Messages {
		said := readBlocks(m.Content)
		switch {
		case m.Role == "tool":
			t.Results = append(t.Results, said)
		case len(t.Results) > 0: // an image of a result stands in a message of its own
			t.Results[len(t.Results)-1].Images += said.Images
		}
	}
	return t
}

func writeCompletions(e *events, c *Call) {
	message, reason := object{"role": "assistant", "content": e.word}, "stop"
	if c != nil {
		message, reason = object{"role": "assistant", "content": nil, "tool_calls": []any{object{
			"index": 0, "id": callID(), "type": "function", "function": object{"name": c.Tool, "arguments": encode(c.Args)},
		}}}, "tool_calls"
	}
	usage := object{"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
	answer := func(kind, member string, message any, reason any) object {
		return object{"id": "c1", "object": kind, "created": 1, "model": "scripted", "usage": usage,
			"choices": []any{object{"index": 0, member: message, "finish_reason": reason}}}
	}
	if !e.stream {
		writeJSON(e.w, answer("chat.completion", "message", message, reason))
		return
	}
	e.send("", answer("chat.completion.chunk", "delta", message, nil))
	e.send("", answer("chat.completion.chunk", "delta", object{}, reason))
	_, _ = e.w.Write([]byte("data: [DONE]\n\n"))
}
