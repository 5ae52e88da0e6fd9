package node

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
)

// What is to happen at the end of a life happens once for each who asked, and not for those who have left.
func TestAfterEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, over := newLife(), errors.New("over")
		defer l.EndWrites()
		const all = 200
		ended := make(chan error, all)
		for i := range all {
			stop := l.AfterEnd(func() { ended <- context.Cause(l.Ctx) })
			if i%2 == 0 && !stop() {
				t.Error("it cannot be stopped")
			}
		}
		synctest.Wait()
		if len(ended) > 0 {
			t.Error("something happened before the end")
		}
		l.Cancel(over)
		synctest.Wait()
		close(ended)
		n := 0
		for cause := range ended {
			if n++; cause != over {
				t.Errorf("the cause is %v", cause)
			}
		}
		if n != all/2 {
			t.Errorf("%d of %d are told", n, all/2)
		}
		told := make(chan bool, 1)
		l.AfterEnd(func() { told <- true })
		<-told // after the end, too
	})
}
