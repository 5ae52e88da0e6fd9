package redisstore

import (
	"fmt"
	"testing"

	"taskgate/internal/redistest"
	"taskgate/shim"
)

// A connection that is cut inside a command or inside a reply, at whatever byte: the
// command is not executed by half, the reply is not believed by half, and the write is
// done once.
func TestCutAtAnyByte(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	warm(t, openTest(t, redis.URL(), testOptions()))
	const most, step = 1600, 11 // no command and no reply here is longer
	for name, do := range map[string]func(*testing.T, *Store, shim.Task) (shim.Task, error){
		"create": func(t *testing.T, s *Store, task shim.Task) (shim.Task, error) {
			task = newTask()
			task.Tool = "MARK"
			return s.Create(t.Context(), task, content("[0]"))
		},
		"append": func(t *testing.T, s *Store, task shim.Task) (shim.Task, error) {
			return s.Apply(t.Context(), task.ID, &held, shim.Change{Tail: []shim.Batch{content("[0]")}, Checkpoint: []byte(`"MARK"`)})
		},
		"end": func(t *testing.T, s *Store, task shim.Task) (shim.Task, error) {
			return s.Apply(t.Context(), task.ID, &held, shim.Change{Op: "MARK", To: shim.Completed, Tail: []shim.Batch{content("[0]")}})
		},
	} {
		for where, fault := range map[string]redistest.Fault{"command": redistest.CutBefore, "reply": redistest.DropReply} {
			t.Run(name+"/"+where, func(t *testing.T) {
				t.Parallel()
				o := testOptions()
				o.RetryFor = limit
				proxy := redistest.NewProxy(t, redis.Addr)
				direct, s := openTest(t, redis.URL(), o), openTest(t, proxy.URL(), o)
				for n := 0; n < most; n += step {
					task := create(t, direct, newTask())
					proxy.NextAfter(fault, "MARK", n)
					task, err := do(t, s, task)
					if err != nil {
						t.Fatalf("after %d bytes: %v", n, err)
					}
					same(t, []string{"[0]"}, batches(t, direct, task.ID))
					if want := map[string]int64{"create": 1, "append": 1, "end": 2}[name]; read(t, direct, task.ID, shim.Summary).Version != want {
						t.Fatalf("after %d bytes: done more than once", n)
					}
				}
				same(t, (most+step-1)/step, proxy.Hit())
			})
		}
	}
}

// The same of the connection on which events come: who watches is told to read again,
// and never something that did not happen.
func TestEventsCutAtAnyByte(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	proxy := redistest.NewProxy(t, redis.Addr)
	o := testOptions()
	direct, s := openTest(t, redis.URL(), o), openTest(t, proxy.URL(), o)
	task := create(t, direct, newTask())
	next := watching(t, s.Watch(t.Context(), task.ID))
	for n := range 150 { // an event has some 110 bytes
		proxy.CutEvents(n)
		for i := range 2 {
			_, err := direct.Apply(t.Context(), task.ID, &held, shim.Change{Op: fmt.Sprint(n, i), StatusMessage: new("x")})
			must(t, err)
		}
		for e := next(); !e.Synced; e = next() {
			if e.ID != task.ID || e.Version > int64(2*n+3) {
				t.Fatalf("after %d bytes: %+v", n, e)
			}
		}
	}
}
