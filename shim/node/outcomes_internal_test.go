package node

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"taskgate/shim"
)

// silent is a Store that is away.
type silent struct{ shim.Store }

func (silent) Get(context.Context, shim.ID, shim.Part) (shim.Task, error) {
	return shim.Task{}, shim.ErrUnavailable
}

// An ending that takes the place of one whose time is over, while the store is away, has all of its own time.
func TestEndingInPlaceOfAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &Outcomes{store: silent{}, life: newLife(), held: make(map[shim.ID]Ending), settle: time.Minute, most: 1}
		o.HoldEnding(Ending{Made: shim.Task{ID: "a"}})
		<-time.After(70 * time.Second) // the store is asked whether it still has that
		o.HoldEnding(Ending{Made: shim.Task{ID: "a"}, End: shim.Change{To: shim.Cancelled}})
		o.life.Cancel(shim.ErrDetached) // which ends that, as an answer would
		synctest.Wait()
		if e, held := o.FindEnding("a"); !held {
			t.Error("it is forgotten with the one before")
		} else {
			e.drop.Stop()
		}
	})
}

// A call may end before the replica that has just made a task of it notes that.
func TestEndingOutlastsTheNoteThatATaskWasMade(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &Outcomes{store: silent{}, life: newLife(), held: make(map[shim.ID]Ending), settle: time.Minute, most: 100}
		o.HoldEnding(Ending{Made: shim.Task{ID: "a"}, End: shim.Change{To: shim.Completed, Outcome: &shim.Outcome{Result: []byte("{}")}}})
		o.HoldEnding(Ending{Made: shim.Task{ID: "a", Visible: true}, End: shim.Change{Visible: true}})
		e, _ := o.FindEnding("a")
		if e.drop.Stop(); e.End.To != shim.Completed || !e.End.Visible || !e.Made.Visible || o.bytes != 2 {
			t.Errorf("%+v is kept of it, in %d bytes", e.End, o.bytes)
		}
	})
}

// asking is a Store with a task that waits for an answer, and counts what is written.
type asking struct {
	shim.Store
	task  shim.Task
	wrote int
}

func (s *asking) Get(context.Context, shim.ID, shim.Part) (shim.Task, error) { return s.task, nil }

func (s *asking) Apply(context.Context, shim.ID, *shim.Lease, shim.Change) (shim.Task, error) {
	s.wrote++
	return s.task, nil
}

// An answer is written again only for the runner that asked: another one may have given the key to another question.
func TestAnswerIsForItsRunner(t *testing.T) {
	asked := shim.Lease{Replica: "a", Adoption: 1}
	for _, l := range []shim.Lease{asked, {Replica: "b", Adoption: 2}} {
		s := &asking{task: shim.Task{Lease: l, Questions: []shim.Question{{Key: "q1", Method: shim.Elicit}}}}
		o := &Outcomes{store: s, observer: &Observer{log: slog.New(slog.DiscardHandler), life: newLife()}}
		e := Ending{Made: shim.Task{Lease: asked}, End: shim.Change{Answer: map[string]json.RawMessage{"q1": []byte("{}")}}}
		if _, err := o.EndAgain(t.Context(), e); err != nil || (s.wrote == 1) != (l == asked) {
			t.Errorf("it is written %d times for %v, %v", s.wrote, l, err)
		}
	}
}

// The answers that are held are those of the newest state of the record: one under an earlier lease, or one that its
// runner has taken, is held no longer.
func TestAnswersOfTheNewestStateAreHeld(t *testing.T) {
	o := &Outcomes{settle: time.Hour, most: 1 << 20, held: map[shim.ID]Ending{}, life: newLife()}
	for _, questions := range [][]shim.Question{
		{{Key: "q1", Answer: []byte("1")}, {Key: "q2", Answer: []byte("1")}},
		{{Key: "q1", Answer: []byte("2")}, {Key: "q2"}, {Key: "q3", Answer: []byte(shim.Forgotten), Taken: true}},
	} {
		o.HoldEnding(Ending{Made: shim.Task{ID: "x", Questions: questions}})
	}
	e, _ := o.FindEnding("x")
	e.drop.Stop()
	if len(e.End.Answer) != 1 || string(e.End.Answer["q1"]) != "2" || o.bytes != 1 {
		t.Errorf("held are %q, %d bytes", e.End.Answer, o.bytes)
	}
}

// While the store is away, endings are held up to a bound, those of all tasks together. Once they have settled there is
// room again.
func TestHeldEndingsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const size, most = 1000, 10
		o := &Outcomes{store: silent{}, life: newLife(), held: make(map[shim.ID]Ending), settle: time.Minute, most: size * most}
		ending := func(id int) Ending {
			return Ending{Made: shim.Task{ID: shim.ID(fmt.Sprint(id))}, End: shim.Change{To: shim.Completed, Outcome: &shim.Outcome{Result: make([]byte, size)}}}
		}
		for i := range 2 * most {
			if held := o.HoldEnding(ending(i)); held != (i < most) {
				t.Errorf("ending %d is held: %t", i, held)
			}
		}
		o.mu.Lock()
		if n := len(o.held); n != most || o.bytes != size*most {
			t.Errorf("%d endings are held, in %d bytes", n, o.bytes)
		}
		o.mu.Unlock()
		<-time.After(3 * time.Minute) // they are tried for as long again
		synctest.Wait()
		if !o.HoldEnding(ending(2 * most)) {
			t.Error("there is no room once they have settled")
		}
		o.life.Cancel(shim.ErrDetached)
		for _, id := range o.HeldIDs() {
			e, _ := o.FindEnding(id)
			e.drop.Stop()
		}
	})
}
