package wire

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"time"

	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
)

// KeptProgress has an exchange send progress of its own to a client that gave a token, after a
// silence: many clients count their time limit anew then.
type KeptProgress struct {
	Token json.RawMessage // the client's; empty switches it off
	Every time.Duration   // 0 means never
	About string          // what the client waits for, in the message: the name of a tool
}

// progressKeeper sends that progress. The turn of the exchange guards it.
type progressKeeper struct {
	KeptProgress
	begun time.Time
	last  float64 // the largest progress that was sent
	timer *time.Timer
}

// keepProgress begins to watch for silence. The caller has the turn.
func (x *Exchange) keepProgress(o KeptProgress) {
	if len(o.Token) == 0 || o.Every <= 0 || !x.accept.stream {
		return
	}
	x.progress = &progressKeeper{KeptProgress: o, begun: time.Now()}
	x.progress.timer = time.AfterFunc(o.Every, x.sendProgress)
}

// noteProgress notes progress that is about to be sent. The caller has the turn.
func (x *Exchange) noteProgress(params json.RawMessage) {
	p := x.progress
	if p == nil {
		return
	}
	if raw, ok := jsonrpc.Get(params, "progress"); ok {
		if n, err := strconv.ParseFloat(string(raw), 64); err == nil {
			p.last = max(p.last, n)
		}
	}
	p.timer.Reset(p.Every)
}

// Heard notes a message that the client of a resumed stream may have heard on it: progress goes on
// from there.
func (x *Exchange) Heard(message []byte) {
	if method, _ := jsonrpc.GetString(message, "method"); method != mcp.NotifyProgress {
		return
	}
	params, _ := jsonrpc.Get(message, "params")
	x.turn.Take()
	defer x.turn.Give()
	x.noteProgress(params)
}

// sendProgress runs on the timer. Its progress rises by so little that the next progress of the
// server rises above it (protocol.md 2.9), leaves out the total, and stops at the largest number. A
// client that has gone hears it when it resumes the stream.
func (x *Exchange) sendProgress() {
	x.turn.Take()
	defer x.turn.Give()
	p := x.progress
	if x.done || x.left && x.send == nil {
		return
	}
	next := max(p.last+progressStep, math.Nextafter(p.last, math.Inf(1)))
	if math.IsInf(next, 1) {
		return
	}
	p.last = next
	params := ProgressParams(p.Token, p.last, fmt.Sprintf("%s is still running, %d s", p.About, int(time.Since(p.begun).Seconds())))
	_ = x.sendMessage(jsonrpc.AppendNotification(nil, mcp.NotifyProgress, params)) // a client that cannot resume the stream misses it
	p.timer.Reset(p.Every)
}

// ProgressParams are the params of a notification of the gateway's own progress. It rises with each one of a token
// (protocol.md 2.9).
func ProgressParams(token json.RawMessage, progress float64, message string) json.RawMessage {
	b := append([]byte(`{"progressToken":`), token...)
	b = strconv.AppendFloat(append(b, `,"progress":`...), progress, 'f', -1, 64)
	return append(jsonrpc.AppendString(append(b, `,"message":`...), message), '}')
}

// progressStep is the step of the gateway's own progress.
const progressStep = 1e-6
