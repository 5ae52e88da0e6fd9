package agents

import (
	"encoding/json"
	"strings"
)

func readGemini(body []byte) (t Turn) {
	var r struct {
		Tools    []struct{ FunctionDeclarations []struct{ Name string } }
		Contents []struct {
			Parts []struct {
				InlineData       *struct{ MimeType string }
				FunctionResponse *struct {
					Response json.RawMessage
					Parts    []struct{ InlineData *struct{ MimeType string } }
				}
			}
		}
	}
	_ = json.Unmarshal(body, &r)
	for _, tool := range r.Tools {
		for _, f := range tool.FunctionDeclarations {
			t.Tools = append(t.Tools, f.Name)
		}
	}
	for _, c := range r.Contents {
		for _, part := range c.Parts {
			if f := part.FunctionResponse; f != nil {
				t.Results = append(t.Results, Result{Text: string(f.Response), Images: len(f.Parts)})
			}
			if part.InlineData != nil && strings.HasPrefix(part.InlineData.MimeType, "image/") && len(t.Results) > 0 {
				t.Results[len(t.Results)-1].Images++
			}
		}
	}
	return t
}

func writeGemini(e *events, c *Call) {
	part := object{"text": e.word}
	if c != nil {
		part = object{"functionCall": object{"id": callID(), "name": c.Tool, "args": c.Args}}
	}
	answer := object{
		"candidates":    []any{object{"index": 0, "finishReason": "STOP", "content": object{"role": "model", "parts": []any{part}}}},
		"usageMetadata": object{"promptTokenCount": 100, "candidatesTokenCount": 10, "totalTokenCount": 110},
	}
	if e.stream {
		e.send("", answer)
		return
	}
	writeJSON(e.w, answer)
}
