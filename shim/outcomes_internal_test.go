package shim

import (
	"context"
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
