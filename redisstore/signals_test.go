package redisstore

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"taskgate/internal/redistest"
)

// A signal that one replica sends for a session is heard by another one with its event: neither the
// state of the session is read, nor the list of its signals, which may be large.
func TestSignalsAreReadAlone(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	o := testOptions()
	here, there := sessionsOf(openTest(t, server.URL(), o), 10, time.Hour), sessionsOf(openTest(t, server.URL(), o), 10, time.Hour)
	_, err := here.Make(t.Context(), "s", "", "", []byte(strings.Repeat("x", 1<<20)))
	must(t, err)
	_, _, err = there.Get(t.Context(), "s")
	must(t, err)
	heard := make(chan string, 64)
	stop := runSessions(t, there, true, func(text string, _ time.Time) { heard <- text })
	say := func(text string) {
		t.Helper()
		must(t, here.Signal(t.Context(), "s", text, ""))
		same(t, text, receive(t, heard, "the signal"))
	}
	say("first") // from here on it listens
	server.Do("config", "resetstat")
	for i := range 20 {
		say(fmt.Sprint("signal ", i))
	}
	info, _ := server.Do("info", "commandstats").(string)
	if strings.Contains(info, "cmdstat_hmget") || strings.Contains(info, "cmdstat_lrange") {
		t.Errorf("to hear signals it did:\n%s", info)
	}
	stop()
}

// Many signals at once are heard each, also by a replica that begins to listen only then.
func TestManySignals(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	o := testOptions()
	here, there := sessionsOf(openTest(t, server.URL(), o), 10, time.Hour), sessionsOf(openTest(t, server.URL(), o), 10, time.Hour)
	makeSession(t, here, "s")
	_, _, err := there.Get(t.Context(), "s")
	must(t, err)
	const many = 400
	send := func(text string) {
		var all sync.WaitGroup
		for worker := range 8 {
			all.Go(func() {
				for i := worker; i < many; i += 8 {
					if err := here.Signal(t.Context(), "s", fmt.Sprint(text, i), "token"); err != nil {
						t.Error(err)
					}
				}
			})
		}
		all.Wait()
	}
	send("before ")
	heard := make(chan string, 4*many)
	stop := runSessions(t, there, true, func(text string, _ time.Time) { heard <- text })
	for _, text := range []string{"before ", "then "} {
		if text == "then " {
			send(text)
		}
		got := map[string]bool{}
		for len(got) < many {
			signal := receive(t, heard, fmt.Sprint("a signal more than ", len(got), " of ", text))
			got[signal] = strings.HasPrefix(signal, text)
		}
	}
	stop()
}

// Signals of one session that wait for their reader are one event, up to a bound: then the list of
// signals is read.
func TestSignalsThatWait(t *testing.T) {
	t.Parallel()
	w := &watcher{}
	signal := func(text string) { w.noteEvent(parseEvent("s -1 token " + text)) }
	signal("a@1 cancel 1")
	signal("b@2 cancel 2")
	same(t, "a@1 cancel 1\nb@2 cancel 2", w.pending["s"].Token)
	signal(strings.Repeat("x", signalsJoined))
	signal("c@3 cancel 3")
	same(t, "", w.pending["s"].Token)
	signal("d@4 cancel 4")
	w.noteEvent(parseEvent("s 7"))
	if e := w.pending["s"]; e.Version == signalSent {
		t.Errorf("a change of the state is lost: %+v", e)
	}
	w.noteSynced()
	w.noteEvent(parseEvent("s 8"))
	signal("e@5#token cancel 5")
	w.noteEvent(parseEvent("s 9"))
	same(t, "e@5#token cancel 5", w.pending["s"].Token)
}
