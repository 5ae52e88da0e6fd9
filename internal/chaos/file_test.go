package chaos

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"taskgate/internal/programtest"
	"taskgate/redisstore"
	"taskgate/shim"
)

// leastLife is how long a gateway over a folder runs at least before it is killed, and
// mostLife how long at most, on a machine that is not busy.
const (
	leastLife = 200 * time.Millisecond
	mostLife  = time.Second
)

// One gateway with a folder of its own is killed under load, again and again, and started again
// each time: it takes its calls over from itself.
func TestChaosFile(t *testing.T) {
	programtest.Long(t)
	t.Parallel()
	u, j := startUpstream(t), newJudge()
	u.rounds = startRounds(t)
	folder := filepath.Join(t.TempDir(), "store")
	w := &world{fleet: newFleet(t, j, u.url, settings{heartbeat: 300 * time.Millisecond, rounds: u.rounds.url}, nil, "file:"+folder)}
	w.fleet.folder = folder
	c := newClients(t, w.fleet, j)
	c.converse(t)
	c.live(t, u, runLimit, w.killAgain, c.upTo(*calls, *workers))
}

// killAgain ends the only gateway and starts it again until ctx ends, seldom in good order.
func (w *world) killAgain(ctx context.Context, injected *tally) {
	r := rand.New(rand.NewPCG(*seed, 4))
	for wait(ctx, time.Duration(float64(leastLife+time.Duration(r.Int64N(int64(mostLife-leastLife))))*min(10, w.fleet.slowness()))) {
		n := w.fleet.nodes[0]
		n.busy.Lock()
		if r.IntN(20) == 0 && runtime.GOOS != "windows" { // where nobody can ask
			injected.add("gateway stopped in good order")
			n.stop()
		} else {
			injected.add("gateway killed")
			n.kill()
		}
		w.restart(0)
		n.busy.Unlock()
	}
}

// openInFolder is open over a folder, as whoever starts over a copy of it finds it.
func (f *fleet) openInFolder() (list []string) {
	dir, err := os.MkdirTemp("", "taskgate-chaos-copy")
	if err != nil {
		return []string{err.Error()}
	}
	defer os.RemoveAll(dir)
	for err = fs.ErrNotExist; errors.Is(err, fs.ErrNotExist); { // a rewrite may remove a file meanwhile
		_ = os.RemoveAll(dir)
		err = os.CopyFS(dir, os.DirFS(f.folder))
	}
	if err != nil {
		return []string{err.Error()}
	}
	ctx, stop := context.WithTimeout(context.Background(), askTimeout)
	defer stop()
	store, err := redisstore.Open(ctx, "file:"+dir, redisstore.Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return []string{err.Error()}
	}
	defer store.Close()
	const judge = "judge"
	if err := store.Beat(ctx, judge, time.Hour); err != nil {
		return []string{err.Error()}
	}
	for {
		tasks, err := store.Adopt(ctx, judge, []string{"chaos", "rounds"}, 100)
		if err != nil {
			return append(list, err.Error())
		}
		for _, t := range tasks {
			if t.Visible || t.Status != shim.InputRequired { // see parked
				list = append(list, fmt.Sprint(t.ID, " ", t.Status, " visible=", t.Visible, " ", t.Tool))
			}
		}
		if len(tasks) < 100 {
			return list
		}
	}
}
