package redisstore

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"taskgate/internal/redistest"
)

// A signal that one replica sends for a session is read by another one without the state of
// that session, which may be large.
func TestSignalsAreReadAlone(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	o := testOptions()
	here, there := openTest(t, server.URL(), o).Sessions(10, time.Hour), openTest(t, server.URL(), o).Sessions(10, time.Hour)
	_, err := here.Make(t.Context(), "s", "", []byte(strings.Repeat("x", 1<<20)))
	must(t, err)
	_, _, err = there.Get(t.Context(), "s")
	must(t, err)
	ctx, stop := context.WithCancel(t.Context())
	heard, done := make(chan string, 64), make(chan error, 1)
	go func() {
		done <- there.Run(ctx, func(string) bool { return true }, func(string, []byte) {}, func(_, text string, _ time.Time) { heard <- text })
	}()
	say := func(text string) {
		t.Helper()
		must(t, here.Signal(t.Context(), "s", text))
		same(t, text, receive(t, heard, "the signal"))
	}
	say("first") // from here on it listens
	server.Do("config", "resetstat")
	for i := range 20 {
		say(fmt.Sprint("signal ", i))
	}
	info, _ := server.Do("info", "commandstats").(string)
	if strings.Contains(info, "cmdstat_hmget") || !strings.Contains(info, "cmdstat_lrange") {
		t.Errorf("to hear signals it did:\n%s", info)
	}
	stop()
	must(t, <-done)
}
