package endpoint

import (
	"testing"
	"time"
)

func TestIsGivingUp(t *testing.T) {
	t.Parallel()
	for reason, want := range map[string]bool{
		"McpError: MCP error -32001: Request timed out":              true,
		"McpError: MCP error -32001: Maximum total timeout exceeded": true,
		"SdkError: Request timed out":                                true,
		"context deadline exceeded":                                  true,
		"timed out after 60.0s":                                      true,
		"timed out after 2s":                                         true,
		"request timeout":                                            true,
		"":                                                           false,
		"AbortError: This operation was aborted":                     false,
		"AbortError: Request timed out":                              false,
		"McpError: MCP error -32001: AbortError: This operation was aborted":   false,
		"McpError: MCP error -32001: Request timed out. Cancelled by the user": false,
		"context canceled":                      false,
		"caller cancelled":                      false,
		"the user pressed Esc: request timeout": false,
		"timed out after s":                     false,
		"timed out after 60s, said the user":    false,
		"Request timed out":                     false,
		"TimeoutError: The operation was aborted due to timeout, by a rule of the program": false,
	} {
		if IsGivingUp(reason) != want {
			t.Errorf("%q: %v", reason, !want)
		}
	}
}

func TestIsClientWait(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		call, message time.Duration
		want          bool
	}{
		{time.Minute, 0, true}, {60499 * time.Millisecond, 0, true}, {59500 * time.Millisecond, 0, true},
		{59499 * time.Millisecond, 0, false}, {60501 * time.Millisecond, 0, false},
		{83 * time.Second, time.Minute, true}, {83 * time.Second, 61 * time.Second, false},
		{30 * time.Second, 5 * time.Second, true}, {5 * time.Minute, 0, true}, {10 * time.Minute, 0, true},
		{45 * time.Second, 45 * time.Second, false}, {0, 0, false}, {time.Hour, time.Second, false},
	} {
		if IsClientWait(c.call, c.message) != c.want {
			t.Errorf("after %v, %v after the last message: %v", c.call, c.message, !c.want)
		}
	}
}
