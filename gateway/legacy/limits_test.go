package legacy_test

import (
	"net/http"
	"strings"
	"testing"

	"taskgate/gateway"
	"taskgate/gateway/config"
	"taskgate/internal/wiretest"
)

func oneCall(c *config.Config) { c.MaxCalls = 1 }

// TestLegacyCallsInFlight: a call of a session counts until it ends, also when its client has
// gone. What makes room goes through.
func TestLegacyCallsInFlight(t *testing.T) {
	stack := newLegacyStack(t, false, oneCall)
	a := newRawClient(t, stack.url).initialize("")
	leave := a.sends(waitCall)
	wiretest.Await(t, stack.session.started, "the tool")
	leave()
	const echo = `{"jsonrpc":"2.0","id":"e","method":"tools/call","params":{"name":"echo"}}`
	for body, want := range map[string]int{
		echo:                    http.StatusServiceUnavailable,
		wiretest.InitializeBody: http.StatusServiceUnavailable,
		`{"jsonrpc":"2.0","id":"p","method":"ping"}`:                                                              http.StatusOK,
		`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"none"}}`:                      http.StatusAccepted,
		`{"jsonrpc":"2.0","id":"no question","result":{"action":"decline"}}`:                                      http.StatusAccepted,
		`{"jsonrpc":"2.0","id":"u","method":"tasks/cancel","params":{"taskId":"` + strings.Repeat("0", 8) + `"}}`: http.StatusOK,
	} {
		if status, text := a.post(body); status != want {
			t.Errorf("%s: %d %s, want %d", body, status, text, want)
		}
	}
	stack.session.proceed <- struct{}{}
	settled(t, "the answer to a call after that", func() bool {
		status, _ := a.post(echo)
		return status == http.StatusOK
	})
}

// TestLegacyStreamsInAll: the GET streams of sessions count, and so do streams that are resumed.
func TestLegacyStreamsInAll(t *testing.T) {
	stack := newLegacyStack(t, false, nil, gateway.Limits{Streams: 1})
	a, b := newRawClient(t, stack.url).initialize(""), newRawClient(t, stack.url).initialize("")
	open := openSSE(t, a, http.MethodGet, "", "")
	if open.resp.StatusCode != http.StatusOK {
		t.Fatalf("the first one: %d", open.resp.StatusCode)
	}
	for what, last := range map[string]string{"another": "", "a resumed one": "stream.1"} {
		if one := openSSE(t, b, http.MethodGet, "", last); one.resp.StatusCode != http.StatusServiceUnavailable || one.resp.Header.Get("Retry-After") != "1" {
			t.Errorf("%s: %d %v", what, one.resp.StatusCode, one.resp.Header)
		}
	}
	open.close()
	settled(t, "the next one", func() bool {
		one := openSSE(t, b, http.MethodGet, "", "")
		defer one.close()
		return one.resp.StatusCode == http.StatusOK
	})
}
