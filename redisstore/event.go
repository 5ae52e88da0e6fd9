package redisstore

import (
	"encoding/json"
	"strconv"
	"strings"

	"taskgate/shim"
)

// maxShown is how many bytes of pieces an event may carry. A message goes to every node
// of a cluster and into the buffer of every subscriber, so what is larger is better read
// by those who want it.
const maxShown = 2 << 10

// withToken begins the token that follows in an event for a runner (apply.lua).
const withToken = "token "

// signalSent is the revision in the event of a signal: the state of the session is as it was.
const signalSent = -1

const (
	// signalsEnd ends each but the last of several signals in one event.
	signalsEnd = "\n"
	// signalsJoined bounds them in bytes. A token has up to 16 KiB, and grows by half when it is sealed.
	signalsJoined = 64 << 10
	// signalToken begins the token in the name of a signal; the list of signals has none.
	signalToken = "#"
)

// joinSignals are the signals of two events of a session, or "" where they are too many, or are not known: then
// the list of signals is read.
func joinSignals(a, b shim.Event) string {
	switch {
	case a.Version != signalSent && a.Token == "":
		return b.Token
	case b.Version != signalSent && b.Token == "":
		return a.Token
	case a.Token == "" || b.Token == "" || len(a.Token)+len(b.Token) > signalsJoined:
		return ""
	}
	return a.Token + signalsEnd + b.Token
}

// parseEvent reads "id version", which may be followed by a token, or by the batches that were appended:
// how many come before them, and each as "length:bytes" (append.lua).
func parseEvent(payload string) shim.Event {
	id, rest, _ := strings.Cut(payload, " ")
	version, rest, _ := strings.Cut(rest, " ")
	e := shim.Event{ID: shim.ID(id)}
	e.Version, _ = strconv.ParseInt(version, 10, 64)
	if token, ok := strings.CutPrefix(rest, withToken); ok {
		e.Token = token
	} else if added, ok := parseAdded(rest); ok {
		e.Added = added
	}
	return e
}

// parseAdded reads pieces, all or none of them.
func parseAdded(text string) (a shim.Added, ok bool) {
	at, rest, _ := strings.Cut(text, " ")
	var err error
	if a.At, err = strconv.ParseInt(at, 10, 64); err != nil {
		return a, false
	}
	for rest != "" {
		size, after, _ := strings.Cut(rest, ":")
		n, err := strconv.Atoi(size)
		if err != nil || n < 0 || n > len(after) {
			return a, false
		}
		a.Pieces = append(a.Pieces, json.RawMessage(after[:n]))
		rest = strings.TrimPrefix(after[n:], " ")
	}
	return a, len(a.Pieces) > 0
}
