package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"taskgate/gateway/config"
	"taskgate/internal/work"
	"taskgate/redisstore"
	"taskgate/redisstore/journal"
	"taskgate/shim"
	"taskgate/shim/engine"
)

// maxWindows bounds the folders of one "stdio --store file:FOLDER", and with that the windows of a person: FOLDER,
// FOLDER/2 and so on.
const maxWindows = 16

// windows are the folders of the windows of one person, as one of them sees them. A folder has a state key of its own,
// which marks the ids of its tasks: so each window knows whose task an id names. It opens the folder of another one that
// has ended when somebody asks for a task of it.
type windows struct {
	s    *server
	base string
	own  string
	keys [][]byte // that mark the ids of its own tasks

	turn   work.Turn             // for what follows
	opened map[string]*oldWindow // by folder
}

// oldWindow is the folder of a window that has ended, opened here: its tasks go on as after a restart.
type oldWindow struct {
	store *redisstore.Store
	shim  *engine.Shim
	stop  context.CancelFunc
	ended chan struct{}
}

func newWindows(s *server, base string) *windows {
	return &windows{s: s, base: base, turn: work.NewTurn(), opened: map[string]*oldWindow{}}
}

// folder is the folder of a window, from 1 on.
func (w *windows) folder(n int) string {
	if n == 1 {
		return w.base
	}
	return filepath.Join(w.base, strconv.Itoa(n))
}

// take opens the first folder that nobody uses, as the window's own.
func (w *windows) take(ctx context.Context) (store *redisstore.Store, err error) {
	for n := 1; n <= maxWindows; n++ {
		w.own = w.folder(n)
		store, err = w.openFolder(ctx, w.own)
		if _, used := errors.AsType[*journal.InUseError](err); !used {
			break
		}
	}
	if used, is := errors.AsType[*journal.InUseError](err); is {
		return nil, fmt.Errorf("%d windows have tasks in %s and below, the last one is process %s: end one of them, or give this one a folder of its own",
			maxWindows, w.base, used.Process)
	}
	if err != nil {
		return nil, err
	}
	w.s.config.WithStoreFolder(w.own)
	if err = useStateKey(w.s.config, w.own); err == nil {
		w.keys, err = markKeys(w.s.config.StateKeys)
	}
	if err != nil {
		return nil, errors.Join(err, store.Close())
	}
	if w.own != w.base {
		w.s.log.Info("another window has the folder, so this one keeps its tasks below it", "folder", w.own)
	}
	return store, nil
}

func (w *windows) openFolder(ctx context.Context, path string) (*redisstore.Store, error) {
	return redisstore.Open(ctx, "file:"+path, redisstore.Options{Prefix: w.s.config.KeyPrefix, Logger: w.s.log})
}

// whose returns the folder of another window that the id of a task is from, with the task as the id describes it; "" for
// any other id.
func (w *windows) whose(p shim.Principal, upstream string, id shim.ID) (folder string, t shim.Task) {
	if _, own := engine.ReadMark(w.keys, id, p.Owner(), upstream); own {
		return "", t
	}
	for n := 1; n <= maxWindows; n++ {
		folder := w.folder(n)
		if folder == w.own {
			continue
		}
		keys, err := keysOfFolder(folder)
		if err != nil { // there is no such window
			continue
		}
		if t, ok := engine.ReadMark(keys, id, p.Owner(), upstream); ok {
			return folder, t
		}
	}
	return "", shim.Task{}
}

// keysOfFolder are the keys that mark the ids of the tasks of a folder.
func keysOfFolder(path string) ([][]byte, error) {
	text, err := os.ReadFile(filepath.Join(path, stateKeyFile))
	if err != nil {
		return nil, err
	}
	return markKeys([]config.StateKey{config.StateKey(strings.TrimSpace(string(text)))})
}

// open returns who serves the tasks of a folder, which it opens if nobody uses it. An InUseError says that another window
// does.
func (w *windows) open(ctx context.Context, folder string) (*engine.Shim, error) {
	if err := w.turn.TakeWithin(ctx); err != nil {
		return nil, err
	}
	defer w.turn.Give()
	if one := w.opened[folder]; one != nil {
		return one.shim, nil
	}
	keys, err := keysOfFolder(folder)
	if err != nil { // it has been removed meanwhile
		return nil, shim.ErrNotFound
	}
	store, err := w.openFolder(ctx, folder)
	if err != nil {
		return nil, err
	}
	one := &oldWindow{store: store, ended: make(chan struct{})}
	if one.shim, err = w.s.newShim(store, newReplica(), keys, nil); err != nil {
		return nil, errors.Join(err, store.Close())
	}
	loops, stop := context.WithCancel(context.Background())
	one.stop = stop
	go func() {
		defer close(one.ended)
		_ = one.shim.Run(loops) // ends with loops
	}()
	w.opened[folder] = one
	w.s.log.Info("the tasks of a window that has ended are served here", "folder", folder)
	return one.shim, nil
}

// sweep sweeps the folders that were opened, as sweepStore does for the window's own.
func (w *windows) sweep(ctx context.Context) {
	if w == nil || w.turn.TakeWithin(ctx) != nil {
		return
	}
	defer w.turn.Give()
	for _, one := range w.opened {
		_ = one.store.Overview().Sweep(ctx)
	}
}

// close lets go of the folders that were opened.
func (w *windows) close(ctx context.Context) (err error) {
	if w == nil {
		return nil
	}
	w.turn.Take()
	defer w.turn.Give()
	for _, one := range w.opened {
		err = errors.Join(err, one.shim.Close(ctx))
		one.stop()
		<-one.ended
		err = errors.Join(err, one.store.Close())
	}
	clear(w.opened)
	return err
}

// windowed is the shim of a window: it also reads, cancels and answers the tasks of windows that have ended. A task of a
// window that is open is answered as working.
type windowed struct {
	*engine.Shim
	windows *windows
}

// find returns who serves a task: this window's shim, or that of a folder that was left. It returns nil, and the task as
// a working one, while another window has it.
func (s windowed) find(ctx context.Context, p shim.Principal, upstream string, id shim.ID) (*engine.Shim, shim.Task, error) {
	folder, t := s.windows.whose(p, upstream, id)
	if folder == "" {
		return s.Shim, t, nil
	}
	at, err := s.windows.open(ctx, folder)
	if used, is := errors.AsType[*journal.InUseError](err); is {
		t.StatusMessage = "held by another window, process " + used.Process
		return nil, t.ShownAt(time.Now()), nil
	}
	if err != nil && !errors.Is(err, shim.ErrNotFound) && ctx.Err() == nil {
		s.windows.s.log.Warn("the tasks of another window cannot be read", "folder", folder, "err", err)
		err = fmt.Errorf("%w: %w", shim.ErrUnavailable, err)
	}
	return at, t, err
}

// errHeld refuses what only the window that has a task can do.
func errHeld(t shim.Task) error {
	return &shim.RPCError{Code: shim.CodeInternal, Message: "the task is " + t.StatusMessage + ": only that one can do this"}
}

// Get is Get of the shim that serves the task, and so are all methods below.
func (s windowed) Get(ctx context.Context, p shim.Principal, upstream string, id shim.ID) (shim.Task, error) {
	at, t, err := s.find(ctx, p, upstream, id)
	if err != nil || at == nil {
		return t, err
	}
	return at.Get(ctx, p, upstream, id)
}

// Find is Get of a task of any of these upstreams.
func (s windowed) Find(ctx context.Context, p shim.Principal, upstreams []string, id shim.ID) (t shim.Task, err error) {
	for _, upstream := range upstreams {
		if t, err = s.Get(ctx, p, upstream, id); !errors.Is(err, shim.ErrNotFound) {
			break
		}
	}
	return t, err
}

// Peek reads the state of a task.
func (s windowed) Peek(ctx context.Context, p shim.Principal, upstream string, id shim.ID) (shim.Task, error) {
	at, t, err := s.find(ctx, p, upstream, id)
	if err != nil || at == nil {
		return t, err
	}
	return at.Peek(ctx, p, upstream, id)
}

// Cancel cancels a task.
func (s windowed) Cancel(ctx context.Context, p shim.Principal, upstream string, id shim.ID) (shim.Task, error) {
	at, t, err := s.find(ctx, p, upstream, id)
	if err == nil && at == nil {
		err = errHeld(t)
	}
	if err != nil {
		return t, err
	}
	return at.Cancel(ctx, p, upstream, id)
}

// Update takes answers to the questions of a task.
func (s windowed) Update(ctx context.Context, p shim.Principal, upstream string, id shim.ID, results map[string]json.RawMessage) error {
	at, t, err := s.find(ctx, p, upstream, id)
	if err == nil && at == nil {
		err = errHeld(t)
	}
	if err != nil {
		return err
	}
	return at.Update(ctx, p, upstream, id, results)
}

// Wait waits for the end of a task.
func (s windowed) Wait(ctx context.Context, p shim.Principal, upstream string, id shim.ID, seen func(shim.Task)) (shim.Task, error) {
	at, err := s.await(ctx, p, upstream, id, func(t shim.Task) error {
		if seen != nil {
			seen(t)
		}
		return nil
	})
	if err != nil {
		return shim.Task{}, err
	}
	return at.Wait(ctx, p, upstream, id, seen)
}

// heldAgain is the time between two looks at a folder that another window has: it tells nobody of its end.
const heldAgain = time.Second

// await returns who serves a task. While another window has it, it waits, after it has told how that looks.
func (s windowed) await(ctx context.Context, p shim.Principal, upstream string, id shim.ID, tell func(shim.Task) error) (*engine.Shim, error) {
	for told := false; ; {
		at, t, err := s.find(ctx, p, upstream, id)
		if err != nil || at != nil {
			return at, err
		}
		if !told {
			if err := tell(t); err != nil {
				return nil, err
			}
			told = true
		}
		if err := work.Pause(ctx, heldAgain); err != nil {
			return nil, err
		}
	}
}

// Track follows a fixed list of tasks.
func (s windowed) Track(ctx context.Context, p shim.Principal, upstream string, tasks []shim.Tracked, yield func(shim.Update) error) error {
	set := s.NewSet(p, upstream, tasks...)
	set.Close()
	return set.Follow(ctx, yield)
}

// NewSet is a set of tasks of this window and of others.
func (s windowed) NewSet(p shim.Principal, upstream string, tasks ...shim.Tracked) shim.Set {
	set := &windowSet{Set: s.Shim.NewSet(p, upstream), s: s, p: p, upstream: upstream}
	set.Add(tasks...)
	return set
}

// windowSet follows the tasks of this window, and beside them those of others, which are added before it is followed.
// A session is of one window, and adds tasks of that only.
type windowSet struct {
	shim.Set // of this window
	s        windowed
	p        shim.Principal
	upstream string

	mu    sync.Mutex
	other []shim.Tracked // tasks of other windows
}

// Add puts tasks into the set.
func (w *windowSet) Add(tasks ...shim.Tracked) {
	var own []shim.Tracked
	for _, k := range tasks {
		if folder, _ := w.s.windows.whose(w.p, w.upstream, k.ID); folder == "" || k.Hidden {
			own = append(own, k)
			continue
		}
		w.mu.Lock()
		w.other = append(w.other, k)
		w.mu.Unlock()
	}
	w.Set.Add(own...)
}

// Remove takes tasks out of the set.
func (w *windowSet) Remove(ids ...shim.ID) {
	w.mu.Lock()
	w.other = slices.DeleteFunc(w.other, func(k shim.Tracked) bool { return slices.Contains(ids, k.ID) })
	w.mu.Unlock()
	w.Set.Remove(ids...)
}

// Tasks returns the tasks in the set.
func (w *windowSet) Tasks() []shim.Tracked {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append(w.Set.Tasks(), w.other...)
}

// Follow yields the states of all tasks, one at a time.
func (w *windowSet) Follow(ctx context.Context, yield func(shim.Update) error) error {
	w.mu.Lock()
	other := slices.Clone(w.other)
	w.mu.Unlock()
	if len(other) == 0 {
		return w.Set.Follow(ctx, yield)
	}
	turn := work.NewTurn()
	inTurn := func(u shim.Update) error {
		turn.Take()
		defer turn.Give()
		return yield(u)
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return w.Set.Follow(ctx, inTurn) })
	for _, k := range other {
		g.Go(func() error {
			at, err := w.s.await(ctx, w.p, w.upstream, k.ID, func(t shim.Task) error { return inTurn(shim.Update{ID: k.ID, Task: &t}) })
			if err != nil {
				return err
			}
			return at.Track(ctx, w.p, w.upstream, []shim.Tracked{k}, inTurn)
		})
	}
	return g.Wait()
}
