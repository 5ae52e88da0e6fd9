package main

import (
	"bytes"
	"os"
	"testing"
)

// The files on disk are what the structs say today.
func TestFresh(t *testing.T) {
	want, err := generate()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range outputs {
		got, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s is out of date; run: go generate ./gateway/config", name)
		}
	}
	values, err := putIntoValues(want)
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(valuesSchema)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, values) {
		t.Errorf("%s is out of date; run: go generate ./gateway/config", valuesSchema)
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
