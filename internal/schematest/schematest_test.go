package schematest

import "testing"

func TestCheck(t *testing.T) {
	for _, c := range []struct {
		version, definition, text string
		ok                        bool
	}{
		{"2026-07-28", "CallToolResult", `{"resultType":"complete","content":[{"type":"text","text":"x"}]}`, true},
		{"2026-07-28", "CallToolResult", `{"content":[]}`, false},
		{"2026-07-28", "ListToolsResult", `{"resultType":"complete","tools":[],"ttlMs":0,"cacheScope":"private"}`, true},
		{"2026-07-28", "ListToolsResult", `{"resultType":"complete","tools":[],"ttlMs":-1,"cacheScope":"private"}`, false},
		{"2025-11-25", "CallToolResult", `{"content":[]}`, true},
		{"2025-11-25", "CallToolResult", `{"content":[{"type":"nonsense"}]}`, false},
		{"2025-06-18", "CallToolResult", `{"content":[]}`, true},
		{"2025-03-26", "CallToolResult", `{"content":{}}`, false},
		{"2024-11-05", "CallToolResult", `{"content":[]}`, true},
		{TasksExtension, "CreateTaskResult", `{"resultType":"task","taskId":"a","status":"working","createdAt":"c","lastUpdatedAt":"l","ttlMs":1}`, true},
		{TasksExtension, "CreateTaskResult", `{"resultType":"complete","taskId":"a","status":"working","createdAt":"c","lastUpdatedAt":"l","ttlMs":1}`, false},
		{"2026-07-28", "NoSuchThing", `{}`, false},
		{"1999-01-01", "CallToolResult", `{}`, false},
		{"2026-07-28", "CallToolResult", `{`, false},
	} {
		if err := Check(c.version, c.definition, []byte(c.text)); (err == nil) != c.ok {
			t.Errorf("%s %s %s: %v", c.version, c.definition, c.text, err)
		}
	}
}
