package legacy_test

import (
	"bytes"
	"encoding/base64"
	"strings"
	"testing"

	"taskgate/gateway/config"
	"taskgate/internal/mcp"
	"taskgate/internal/wiretest"
)

// behindMark begins the state of a gateway behind another one.
const behindMark = "up."

// TestParkedBehindAnotherGateway asks through two gateways in a row. The inner one gives
// out the state, which the outer one must not take for its own, whether it has another
// key by the same name or, as replicas of one deployment might, the very same.
func TestParkedBehindAnotherGateway(t *testing.T) {
	const notGiven = "was not given out for this request"
	for name, secret := range map[string]byte{"other key": 9, "same key": 7} {
		t.Run(name, func(t *testing.T) {
			unmarked := notGiven
			if secret == 7 { // it opens, and leads to a call that this store does not have
				unmarked = "is over"
			}
			p := newParking(t, nil)
			c := newConfig(nil)
			c.Upstreams[0].UpstreamTasks = config.UpstreamTasksNever // else the inner one asks in a task
			c.StateKeys = []config.StateKey{config.StateKey(base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{secret}, 32)))}
			p.start(t, "outer", p.at[0], c)
			outer := p.at[len(p.at)-1]
			for _, a := range []asked{askTool, askPrompt, askResource} {
				state, questions := a.park(t, outer, "")
				if !strings.HasPrefix(state, behindMark+"tg1.") {
					t.Errorf("the state is %q", state)
				}
				for bad, says := range map[string]string{
					strings.TrimPrefix(state, behindMark): unmarked, state + "x": notGiven, "tg1.k1.AAAA": notGiven,
				} {
					wantRefusal(t, a.send(t, outer, answering(bad, "Eve", questions...)), mcp.CodeInvalidParams, says)
				}
				wantText(t, a.send(t, outer, answering(state, "Ada", questions...)), "accept Ada")
				wiretest.Await(t, p.ended, "the end of the call at the server")
			}
			p.wantRuns(t, 3)
		})
	}
}

// TestParkedByTaskBehind asks through two gateways in a row, of which the inner one makes a task
// of the call. What that asks, the outer one asks with a state of its own.
func TestParkedByTaskBehind(t *testing.T) {
	p := newParking(t, nil)
	c := newConfig(nil)
	c.StateKeys = []config.StateKey{config.StateKey(base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{9}, 32)))}
	p.start(t, "outer", p.at[0], c)
	outer := p.at[len(p.at)-1]
	state, questions := askTool.park(t, outer, "")
	if !strings.HasPrefix(state, "tg1.") {
		t.Errorf("the state is %q", state)
	}
	wantText(t, askTool.send(t, outer, answering(state, "Ada", questions...)), "accept Ada")
	p.wantRuns(t, 1)
}

// A client that declares nothing any more when it comes back is still led to its call.
func TestParkedDeclaringLess(t *testing.T) {
	p := newParking(t, nil)
	for _, a := range []asked{askTool, askPrompt, askResource} {
		state, questions := a.park(t, p.at[0], "")
		a.caps = `{}`
		wantText(t, a.send(t, p.at[1], answering(state, "Ada", questions...)), "accept Ada")
		wiretest.Await(t, p.ended, "the end of the call at the server")
	}
	p.wantRuns(t, 3)
}
