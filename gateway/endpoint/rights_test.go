package endpoint

import (
	"testing"

	"taskgate/gateway/config"
)

// TestShownTools: a list that lacks tools for some callers is for one caller, whatever its server says. Any other list
// stays as it is.
func TestShownTools(t *testing.T) {
	const list = `{"tools":[{"name":"a"},{"name":"b"}],"cacheScope":"public"}`
	u := config.NewUpstream("up", "")
	e := &Endpoint{Config: u}
	nobody := e.WithRights(t.Context(), func(p config.Tool) bool { return len(p.Principals) == 0 })
	if got := string(e.ShownTools(nobody, []byte(list))); got != list {
		t.Errorf("nothing is hidden: %s", got)
	}
	rule := config.Rule{Match: config.ByName("b"), Tool: u.Defaults}
	rule.Principals = []string{"alice"}
	u.Tools = []config.Rule{rule}
	if got := string(e.ShownTools(nobody, []byte(list))); got != `{"tools":[{"name":"a"}],"cacheScope":"private"}` {
		t.Errorf("b is hidden: %s", got)
	}
	if got := string(e.ShownTools(t.Context(), []byte(list))); got != `{"tools":[{"name":"a"},{"name":"b"}],"cacheScope":"private"}` {
		t.Errorf("a caller who has every right: %s", got)
	}
}
