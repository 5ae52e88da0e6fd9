package node

import (
	"testing"
	"time"

	"taskgate/shim"
)

// A server is slow once most of its last calls have been longer than their grace, and no longer once most are quick. Calls that
// never become tasks are quick, and those that always do are slow; other requests than calls count for nothing.
func TestSlowServer(t *testing.T) {
	for name, c := range map[string]struct {
		policy shim.Policy
		method string
		took   time.Duration
		slow   bool
	}{
		"slow calls":        {shim.Policy{Tasks: shim.Auto, Grace: time.Second}, shim.CallTool, 2 * time.Second, true},
		"quick calls":       {shim.Policy{Tasks: shim.Auto, Grace: time.Second}, shim.CallTool, time.Millisecond, false},
		"a learned grace":   {shim.Policy{Tasks: shim.Auto, Grace: shim.GraceAuto}, shim.CallTool, 2 * shim.LearnedGrace, true},
		"tasks at once":     {shim.Policy{Tasks: shim.Always}, shim.CallTool, time.Millisecond, true},
		"never tasks":       {shim.Policy{Tasks: shim.Never}, shim.CallTool, time.Hour, false},
		"no call of a tool": {shim.Policy{Tasks: shim.Auto}, "prompts/get", time.Hour, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := NewServer("up", shim.Server{}, nil)
			for n := range 2 * pacedCalls {
				if got, want := s.Graces.IsSlow(), c.slow && n >= leastPaced; got != want {
					t.Errorf("after %d calls: %t", n, got)
				}
				s.LearnPace(shim.Request{Method: c.method, Name: "t"}, c.policy, c.took, nil)
			}
			for range pacedCalls/2 + 1 {
				s.LearnPace(shim.Request{Method: shim.CallTool, Name: "t"}, shim.Policy{Tasks: shim.Auto, Grace: time.Second}, 0, nil)
			}
			if s.Graces.IsSlow() {
				t.Error("it stays slow")
			}
		})
	}
}
