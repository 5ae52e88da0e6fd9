package shim

import (
	"context"
	"encoding/json"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"
)

// silent is a Store that is away.
type silent struct{ Store }

func (silent) Get(context.Context, ID, Part) (Task, error) { return Task{}, ErrUnavailable }

// An ending that takes the place of one whose time is over, while the store is away, has all of its own time.
func TestEndingInPlaceOfAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &outcomes{store: silent{}, life: newLife(), held: make(map[ID]ending), settle: time.Minute, most: 1}
		o.holdEnding(ending{made: Task{ID: "a"}})
		<-time.After(70 * time.Second) // the store is asked whether it still has that
		o.holdEnding(ending{made: Task{ID: "a"}, end: Change{To: Cancelled}})
		o.life.cancel(ErrDetached) // which ends that, as an answer would
		synctest.Wait()
		if e, held := o.findEnding("a"); !held {
			t.Error("it is forgotten with the one before")
		} else {
			e.drop.Stop()
		}
	})
}

// A call may end before the replica that has just made a task of it notes that.
func TestEndingOutlastsTheNoteThatATaskWasMade(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &outcomes{store: silent{}, life: newLife(), held: make(map[ID]ending), settle: time.Minute, most: 100}
		o.holdEnding(ending{made: Task{ID: "a"}, end: Change{To: Completed, Outcome: &Outcome{Result: []byte("{}")}}})
		o.holdEnding(ending{made: Task{ID: "a", Visible: true}, end: Change{Visible: true}})
		e, _ := o.findEnding("a")
		if e.drop.Stop(); e.end.To != Completed || !e.end.Visible || !e.made.Visible || o.bytes != 2 {
			t.Errorf("%+v is kept of it, in %d bytes", e.end, o.bytes)
		}
	})
}

// asking is a Store with a task that waits for an answer, and counts what is written.
type asking struct {
	Store
	task  Task
	wrote int
}

func (s *asking) Get(context.Context, ID, Part) (Task, error) { return s.task, nil }

func (s *asking) Apply(context.Context, ID, *Lease, Change) (Task, error) {
	s.wrote++
	return s.task, nil
}

// An answer is written again only for the runner that asked: another one may have given the key to another question.
func TestAnswerIsForItsRunner(t *testing.T) {
	asked := Lease{Replica: "a", Adoption: 1}
	for _, l := range []Lease{asked, {Replica: "b", Adoption: 2}} {
		s := &asking{task: Task{Lease: l, Questions: []Question{{Key: "q1", Method: elicit}}}}
		o := &outcomes{store: s, observer: &observer{log: slog.New(slog.DiscardHandler), life: newLife()}}
		e := ending{made: Task{Lease: asked}, end: Change{Answer: map[string]json.RawMessage{"q1": []byte("{}")}}}
		if _, err := o.endAgain(t.Context(), e); err != nil || (s.wrote == 1) != (l == asked) {
			t.Errorf("it is written %d times for %v, %v", s.wrote, l, err)
		}
	}
}

// The answers that are held are those of the newest state of the record: one under an earlier lease, or one that its
// runner has taken, is held no longer.
func TestAnswersOfTheNewestStateAreHeld(t *testing.T) {
	o := &outcomes{settle: time.Hour, most: 1 << 20, held: map[ID]ending{}, life: newLife()}
	for _, questions := range [][]Question{
		{{Key: "q1", Answer: []byte("1")}, {Key: "q2", Answer: []byte("1")}},
		{{Key: "q1", Answer: []byte("2")}, {Key: "q2"}, {Key: "q3", Answer: []byte(Forgotten), Taken: true}},
	} {
		o.holdEnding(ending{made: Task{ID: "x", Questions: questions}})
	}
	e, _ := o.findEnding("x")
	e.drop.Stop()
	if len(e.end.Answer) != 1 || string(e.end.Answer["q1"]) != "2" || o.bytes != 1 {
		t.Errorf("held are %q, %d bytes", e.end.Answer, o.bytes)
	}
}
