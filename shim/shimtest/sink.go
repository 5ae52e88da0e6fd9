package shimtest

import (
	"context"
	"encoding/json"
	"slices"
	"sync"

	"taskgate/shim"
)

// Sink is a shim.Sink that records what it is told. Its methods may be used from
// any goroutine; the functions may be nil.
type Sink struct {
	// OnAsk answers questions; nil answers shim.ErrNoAsk.
	OnAsk func(ctx context.Context, q ...shim.Question) ([]shim.Answer, error)
	// OnRoomToAsk says whether there is room for questions of so many bytes; nil says yes.
	OnRoomToAsk func(bytes int) bool
	// OnCheckpoint may refuse a checkpoint.
	OnCheckpoint func(cp json.RawMessage) error
	// OnProgress is called for each progress notification.
	OnProgress func(shim.Progress)

	mu          sync.Mutex
	progress    []shim.Progress
	logs        []shim.Log
	checkpoints []json.RawMessage
	questions   []shim.Question
	open        []shim.Question // of the latest Ask
	stop        func()          // ends it
	withdrawn   []string
}

var _ shim.Sink = (*Sink)(nil)

// Progress implements shim.Sink.
func (s *Sink) Progress(p shim.Progress) {
	s.mu.Lock()
	s.progress = append(s.progress, p)
	s.mu.Unlock()
	if s.OnProgress != nil {
		s.OnProgress(p)
	}
}

// Log implements shim.Sink.
func (s *Sink) Log(l shim.Log) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.logs = append(s.logs, l)
}

// RoomToAsk implements shim.Sink.
func (s *Sink) RoomToAsk(bytes int) bool { return s.OnRoomToAsk == nil || s.OnRoomToAsk(bytes) }

// Ask implements shim.Sink. The context of OnAsk ends with the last of the questions that is withdrawn.
func (s *Sink) Ask(ctx context.Context, q ...shim.Question) ([]shim.Answer, error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	s.mu.Lock()
	s.questions, s.open, s.stop = append(s.questions, q...), q, stop
	s.stopIfWithdrawn()
	s.mu.Unlock()
	if s.OnAsk == nil {
		return nil, shim.ErrNoAsk
	}
	return s.OnAsk(ctx, q...)
}

// Withdraw implements shim.Sink.
func (s *Sink) Withdraw(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.withdrawn = append(s.withdrawn, key)
	s.stopIfWithdrawn()
}

// stopIfWithdrawn ends the latest Ask if all its questions are withdrawn. s.mu is held.
func (s *Sink) stopIfWithdrawn() {
	open := func(q shim.Question) bool { return !slices.Contains(s.withdrawn, q.Key) }
	if s.stop != nil && !slices.ContainsFunc(s.open, open) {
		s.stop()
	}
}

// Withdrawn returns the keys of the questions that were withdrawn so far.
func (s *Sink) Withdrawn() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.withdrawn)
}

// Checkpoint implements shim.Sink.
func (s *Sink) Checkpoint(cp json.RawMessage) (stored func(context.Context) error) {
	s.mu.Lock()
	s.checkpoints = append(s.checkpoints, slices.Clone(cp))
	s.mu.Unlock()
	return func(context.Context) error {
		if s.OnCheckpoint != nil {
			return s.OnCheckpoint(cp)
		}
		return nil
	}
}

// Heard returns the progress and the logs so far.
func (s *Sink) Heard() ([]shim.Progress, []shim.Log) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.progress), slices.Clone(s.logs)
}

// Asked returns the questions so far.
func (s *Sink) Asked() []shim.Question {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.questions)
}

// Checkpoints returns the checkpoints so far, those of progress not included.
func (s *Sink) Checkpoints() []json.RawMessage {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.checkpoints)
}

// Latest is the newest checkpoint, whichever way it came; nil for none.
func (s *Sink) Latest() json.RawMessage {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range slices.Backward(s.progress) {
		if p.Checkpoint != nil {
			return p.Checkpoint
		}
	}
	if len(s.checkpoints) == 0 {
		return nil
	}
	return s.checkpoints[len(s.checkpoints)-1]
}
