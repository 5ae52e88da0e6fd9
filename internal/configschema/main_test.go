package main

import (
	"bytes"
	"os"
	"strings"
	"testing"
)

// The files on disk are what the structs say today.
func TestFresh(t *testing.T) {
	files, err := generate()
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range files {
		got, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s is out of date; run: go generate ./gateway/config", name)
		}
	}
}

func TestDescription(t *testing.T) {
	d := docs{
		"Tool.InputTimeout": "InputTimeout is the longest ttl\nthat counts.\n\nMore.\n",
		"Tool.Tasks":        "Tasksy is another word.\n",
	}
	for _, tt := range []struct{ field, key, want string }{
		{"InputTimeout", "input_timeout", "input_timeout is the longest ttl that counts.\n\nMore."},
		{"Tasks", "tasks", "Tasksy is another word."},
		{"None", "none", ""},
	} {
		if got := d.description("Tool", tt.field, tt.key); got != tt.want {
			t.Errorf("description(%s) = %q, want %q", tt.field, got, tt.want)
		}
	}
}

// A key without a comment would be a key without a manual.
func TestUndocumentedField(t *testing.T) {
	if _, err := configSchema(docs{}); err == nil {
		t.Error("no error for fields without comments")
	}
}

// A key of which the page says nothing is told, and so is a row without a key.
func TestPageHasEachKey(t *testing.T) {
	text := object{{"description", "new is new."}, {"type", "string"}}
	schema := object{{"properties", object{{"new", text}, {"log", object{{"properties", object{{"newer", text}}}}}}}}
	_, err := completePage(schema)
	for _, want := range []string{"no row for new:", "no row for log.newer:", "no key of the file: | `listen` |"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is missing in %v", want, err)
		}
	}
}

func TestDescribeKey(t *testing.T) {
	schema := object{{"required", []string{"a"}}, {"properties", object{
		{"a", object{{"description", "a is one thing. And more."}, {"type", "string"}}},
		{"b", object{{"description", "b ends <it>"}, {"pattern", "^auto$|" + durationForm + "|" + variable}, {"default", "auto"}}},
	}}}
	for path, want := range map[string]string{
		"a": "| `a` | text | required | one thing | who |\n",
		"b": "| `b` | `auto`, duration | `auto` | ends \\<it> | who |\n",
		"c": "",
	} {
		if got := schema.describeKey(path, path, "who"); got != want {
			t.Errorf("describeKey(%s) = %q, want %q", path, got, want)
		}
	}
}
