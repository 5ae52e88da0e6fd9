package shim_test

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"taskgate/shim"
)

// streams is an upstream that streams its result by itself, a text each second, and makes
// progress all the while.
func streams(content bool, answer string, texts ...string) *scripted {
	return &scripted{call: func(ctx context.Context, r shim.Request, s shim.Sink) (shim.Reply, error) {
		if err := s.Checkpoint(ctx, json.RawMessage(`{"at":0}`)); err != nil {
			return shim.Reply{}, err
		}
		return goesOn(ctx, s, r, content, 0, answer, texts...)
	}}
}

func goesOn(ctx context.Context, s shim.Sink, r shim.Request, content bool, from int, answer string, texts ...string) (shim.Reply, error) {
	sink := s.(shim.PieceSink)
	if r.Pieces {
		sink.Piece(shim.Piece{Content: content})
	}
	for i, text := range texts {
		if _, err := after(ctx, time.Second); err != nil {
			return shim.Reply{}, err
		}
		s.Progress(shim.Progress{Progress: float64(i + 1), Message: "step"})
		if r.Pieces {
			sink.Piece(shim.Piece{
				Content: content, Blocks: []json.RawMessage{fmt.Appendf(nil, `{"type":"text","text":%q}`, text)},
				Checkpoint: fmt.Appendf(nil, `{"at":%d}`, from+i+1),
			})
		}
	}
	_, err := after(ctx, time.Second)
	return shim.Reply{Result: json.RawMessage(answer)}, err
}

// What a server streams by itself is content or hints by its draft, whatever the policy
// says of progress, which then makes no pieces of its own; and it is shown to those who
// opted in for it, and asked of the server for nobody else.
func TestPiecesOfTheServer(t *testing.T) {
	const answer = `{"content":[{"type":"text","text":"a"},{"type":"text","text":"b"}],"n":1.0}`
	both := map[shim.Show]string{shim.ShowBatches: "0:a 1:b completed", shim.ShowSegments: "1:a 2:b completed"}
	for name, c := range map[string]struct {
		call    shim.Call
		content bool // what the server streams
		policy  bool // progress: content
		show    shim.Show
		want    string
		asked   bool
	}{
		"content to who streams":         {streamingCall(), true, false, shim.ShowSegments, both[shim.ShowSegments], true},
		"and where progress is content":  {streamingCall(), true, true, shim.ShowSegments, both[shim.ShowSegments], true},
		"content to who takes partials":  {partialsCall(), true, false, shim.ShowBatches, both[shim.ShowBatches], true},
		"content that is kept for all":   {call(), true, true, shim.ShowBatches, both[shim.ShowBatches], true},
		"content that nobody wants":      {call(), true, false, shim.ShowBatches, "completed", false},
		"hints to who takes partials":    {partialsCall(), false, false, shim.ShowBatches, both[shim.ShowBatches], true},
		"hints are no part of a result":  {streamingCall(), false, false, shim.ShowSegments, both[shim.ShowSegments], true},
		"hints that nobody wants":        {call(), false, false, shim.ShowBatches, "completed", false},
		"progress is, and not the hints": {call(), false, true, shim.ShowBatches, "0:step 1:step completed", true},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				asked := false
				u := streams(c.content, answer, "a", "b")
				plain := u.call
				u.call = func(ctx context.Context, r shim.Request, s shim.Sink) (shim.Reply, error) {
					asked = r.Pieces && r.Within == 24*time.Hour
					return plain(ctx, r, s)
				}
				s := w.gateway("a", u, streaming(c.policy))
				task := begin(t, s, c.call)
				pass(time.Minute)
				track(t, s, shim.Tracked{ID: task.ID, Show: c.show}).want(t, c.want)
				if asked != c.asked {
					t.Errorf("pieces were asked for: %t", asked)
				}
				ended, err := s.Get(t.Context(), anyone, "up", task.ID)
				if err != nil || string(ended.Outcome.Result) != answer {
					t.Errorf("stored %s, %v", ended.Outcome.Result, err)
				}
			})
		})
	}
}

// A call that never becomes a task has nobody who would see its pieces.
func TestNoPiecesWithoutATask(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		u := takes(0)
		s := w.gateway("a", &scripted{call: func(ctx context.Context, r shim.Request, k shim.Sink) (shim.Reply, error) {
			if r.Pieces {
				t.Error("pieces were asked for")
			}
			return u.call(ctx, r, k)
		}}, policy(shim.Never))
		if _, err := s.Call(t.Context(), partialsCall()); err != nil {
			t.Error(err)
		}
	})
}

// Who adopts the call goes on behind the last piece that is stored: none is twice there,
// and none missing.
func TestAdoptedPieces(t *testing.T) {
	const answer = `{"content":[{"type":"text","text":"a"},{"type":"text","text":"b"},{"type":"text","text":"c"}]}`
	texts := []string{"a", "b", "c"}
	for _, batching := range []time.Duration{0, 50 * time.Millisecond, 1500 * time.Millisecond} {
		bubble(t, func(t *testing.T, w *world) {
			p := streaming(false)
			p.Partials.Interval = batching
			lost, err := shim.New(shim.Options{
				Replica: "lost", Store: w.store, Heartbeat: 5 * time.Second,
				Servers: map[string]shim.Server{"up": {Upstream: streams(true, answer, texts...), Policy: func(string) shim.Policy { return p }}},
			})
			if err != nil {
				t.Fatal(err)
			}
			task := begin(t, lost, streamingCall())
			pass(2500 * time.Millisecond)
			w.mute(lost)
			u := &scripted{resume: func(ctx context.Context, r shim.Request, cp json.RawMessage, s shim.Sink) (shim.Reply, error) {
				var mark struct{ At int }
				if err := json.Unmarshal(cp, &mark); err != nil {
					return shim.Reply{}, err
				}
				return goesOn(ctx, s, r, true, mark.At, answer, texts[mark.At:]...)
			}}
			s := w.gateway("b", u, p)
			l := track(t, s, shim.Tracked{ID: task.ID, Show: shim.ShowSegments, From: 1})
			pass(time.Minute)
			l.mu.Lock()
			last := l.lines[len(l.lines)-1]
			l.mu.Unlock()
			blocks, end, err := s.Segments(t.Context(), anyone, "up", task.ID, 0)
			if last != "completed" || err != nil || end.Status != shim.Completed || texts3(blocks) != "a+b+c" {
				t.Errorf("interval %v: %s, %s, %v", batching, last, blocks, err)
			}
		})
	}
}

func texts3(blocks []json.RawMessage) string {
	all, _ := json.Marshal(blocks)
	return texts(all)
}
