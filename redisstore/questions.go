package redisstore

import (
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"

	"taskgate/shim"
)

// The states of a stored question, as in lua/questions.lua.
const (
	stateOpen      = "open"
	stateAnswered  = "answered"
	stateTaken     = "taken"
	stateWithdrawn = "withdrawn"
)

// errPacked says that a field is malformed.
var errPacked = errors.New("malformed list of strings")

// pack appends strings, each as <length>:<bytes>. lua/questions.lua can read this form; it takes
// any bytes and escapes none.
func pack(b []byte, list ...string) []byte {
	for _, s := range list {
		b = strconv.AppendInt(b, int64(len(s)), 10)
		b = append(b, ':')
		b = append(b, s...)
	}
	return b
}

// unpack is the reverse. The strings share memory with s.
func unpack(s string) ([]string, error) {
	var list []string
	for s != "" {
		digits, rest, ok := strings.Cut(s, ":")
		n, err := strconv.Atoi(digits)
		if !ok || err != nil || n < 0 || n > len(rest) {
			return nil, errPacked
		}
		list, s = append(list, rest[:n]), rest[n:]
	}
	return list, nil
}

// encodeQuestions writes the questions of a new task.
func encodeQuestions(questions []shim.Question) string {
	var b []byte
	for _, q := range questions {
		b = pack(b, q.Key, q.Method, string(q.Params), "", stateOf(q), string(q.Answer), "")
	}
	return string(b)
}

func stateOf(q shim.Question) string {
	switch {
	case q.Taken:
		return stateTaken
	case q.Answer != nil:
		return stateAnswered
	case q.Withdraw:
		return stateWithdrawn
	default:
		return stateOpen
	}
}

// questions reads the questions of a record. Only those that the operation taker took are Taken; with "",
// those that any took.
func (r *row) questions(taker string) []shim.Question {
	list, err := unpack(r.text())
	if err != nil || len(list)%7 != 0 {
		r.err = errPacked
		return nil
	}
	var out []shim.Question
	for v := range slices.Chunk(list, 7) {
		q := shim.Question{Key: v[0], Method: v[1], Withdraw: v[4] == stateWithdrawn}
		q.Taken = v[4] == stateTaken && (taker == "" || taker == v[6])
		if v[2] != "" {
			q.Params = json.RawMessage(v[2])
		}
		if v[4] == stateTaken || v[4] == stateAnswered {
			q.Answer = json.RawMessage(v[5])
		}
		out = append(out, q)
	}
	return out
}

// encodeTrace writes a trace context, which trace reads.
func encodeTrace(trace map[string]string) string {
	var b []byte
	for _, k := range slices.Sorted(maps.Keys(trace)) {
		b = pack(b, k, trace[k])
	}
	return string(b)
}

func (r *row) trace() map[string]string {
	list, err := unpack(r.text())
	if err != nil || len(list)%2 != 0 {
		r.err = errPacked
		return nil
	}
	if len(list) == 0 {
		return nil
	}
	m := make(map[string]string, len(list)/2)
	for kv := range slices.Chunk(list, 2) {
		m[kv[0]] = kv[1]
	}
	return m
}
