package journal

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// quiet are options for tests.
func quiet() Options { return Options{Logger: slog.New(slog.DiscardHandler)} }

// keeper opens a journal and collects what it has.
type keeper struct {
	*Journal
	entries []string
}

func keep(t *testing.T, dir Folder, o Options) *keeper {
	t.Helper()
	k, err := reopen(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func reopen(dir Folder, o Options) (*keeper, error) {
	o.Folder = dir
	return openKeeper("folder", o)
}

// openKeeper opens a journal, and keeps what it finds there.
func openKeeper(path string, o Options) (k *keeper, err error) {
	k = &keeper{}
	k.Journal, err = Open(path, o, func(entry []byte, _ Place) error {
		k.entries = append(k.entries, string(entry))
		return nil
	})
	return k, err
}

// put adds entries as one unit, and waits for them.
func (k *keeper) put(entries ...string) error {
	var unit []byte
	for _, e := range entries {
		unit = Encode(unit, []byte(e))
	}
	k.Add([]string{"key"}, unit)
	return k.Wait(context.Background(), []string{"key"})
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// told is what a run was told to be durable, unit by unit, before the power was cut.
func run(k *keeper) (told int) {
	defer func() { _ = k.Close() }()
	for i := range 6 {
		if i == 2 || i == 4 { // the unit before is all that counts
			if k.Begin() != nil {
				return told
			}
			k.Switch()
			k.Add(nil, Encode(nil, fmt.Appendf(nil, "all before %d", i)))
			if k.End(context.Background()) != nil {
				return told
			}
		}
		if k.put(fmt.Sprint("a", i), fmt.Sprint("b", i)) != nil {
			return told
		}
		told = i + 1
	}
	return told
}

// The power is cut at each operation of a run, and each time a start finds everything that was
// told to be durable, units whole and in order, and goes on. Whatever the disk has kept of what
// was not synced makes no difference.
func TestCutAtEveryPoint(t *testing.T) {
	t.Parallel()
	whole := newMemory()
	run(keep(t, whole, quiet()))
	if whole.Changes() < 30 {
		t.Fatalf("only %d operations", whole.Changes())
	}
	for cut := range whole.Changes() {
		m := newMemory()
		m.CutPower(cut)
		told := 0
		synctest.Test(t, func(t *testing.T) {
			if k, err := reopen(m, quiet()); err == nil {
				told = run(k)
			}
		})
		for _, kept := range []int{0, 1, 7, 13, 30, 1000} {
			for _, holes := range []bool{false, true} {
				for _, unsynced := range []bool{false, true} {
					name := fmt.Sprintf("cut %d kept %d holes %t unsynced %t", cut, kept, holes, unsynced)
					synctest.Test(t, func(t *testing.T) { found(t, name, m.after(kept, holes, unsynced), told) })
				}
			}
		}
	}
}

// found starts over what a crash has left.
func found(t *testing.T, name string, m memory, told int) {
	k, err := reopen(m, quiet())
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	// What counts is what comes after the last rewrite.
	units, first := []string{}, 0
	for _, e := range k.entries {
		if n, is := strings.CutPrefix(e, "all before "); is {
			_, err := fmt.Sscan(n, &first)
			must(t, err)
			units = units[:0]
			for i := range first {
				units = append(units, fmt.Sprint("a", i), fmt.Sprint("b", i))
			}
			continue
		}
		units = append(units, e)
	}
	for i, e := range units {
		if want := fmt.Sprint(string("ab"[i%2]), i/2); e != want {
			t.Fatalf("%s: entry %d is %q: %q", name, i, e, k.entries)
		}
	}
	if len(units)%2 != 0 || len(units)/2 < told || len(units)/2 > told+1 {
		t.Fatalf("%s: %d units were told of, and there are %q", name, told, k.entries)
	}
	must(t, k.put("goes on"))
	must(t, k.Close())
	again := keep(t, m, quiet())
	if last := again.entries[len(again.entries)-1]; last != "goes on" {
		t.Fatalf("%s: the last entry is %q", name, last)
	}
	must(t, again.Close())
}

// A crash cuts a write short, just as a rewrite has made its file, or the next start begins with one. The starts after it
// find no damage in the file that is not written to any more.
func TestCutWhileARewriteBegins(t *testing.T) {
	t.Parallel()
	for _, early := range []bool{true, false} {
		m := newMemory()
		k := keep(t, m, quiet())
		must(t, k.put("before"))
		if early {
			must(t, k.Begin())
		}
		m.CutPower(1) // after the write, before its sync
		if k.put("is cut short") == nil {
			t.Fatal("it was told to be durable")
		}
		_ = k.Close() // the error is that of the write
		m = m.after(7, false, false)
		want := []string{"before"}
		for range 3 {
			k := keep(t, m, quiet())
			if !slices.Equal(k.entries, want) {
				t.Fatalf("found %q", k.entries)
			}
			if !early {
				must(t, k.Begin())
				k.Switch()
			}
			want = append(want, fmt.Sprint("goes on ", len(want)))
			must(t, k.put(want[len(want)-1]))
			must(t, k.Close())
			m = m.after(0, false, false)
		}
	}
}

// A process is killed at each operation of a run, the next one reads what is in the memory of the machine, and then the
// power is cut: what was read, and what was written since, is there.
func TestKilledAndThenCut(t *testing.T) {
	t.Parallel()
	whole := newMemory()
	run(keep(t, whole, quiet()))
	for cut := range whole.Changes() {
		for _, more := range []string{"", "goes on"} {
			m := newMemory()
			m.CutPower(cut)
			synctest.Test(t, func(*testing.T) {
				if k, err := reopen(m, quiet()); err == nil {
					run(k)
				}
			})
			m.CutPower(-1)
			k := keep(t, m, quiet())
			want := k.entries
			if more != "" {
				must(t, k.put(more))
				want = append(want, more)
			}
			must(t, k.Close())
			again, err := reopen(m.after(0, false, false), quiet())
			if err != nil {
				t.Fatalf("cut %d: %v", cut, err)
			}
			must(t, again.Close())
			if got := afterRewrite(again.entries); !slices.Equal(got, afterRewrite(want)) {
				t.Fatalf("cut %d: there was %q, and is %q", cut, want, got)
			}
		}
	}
}

// afterRewrite leaves out what a rewrite makes superfluous.
func afterRewrite(entries []string) []string {
	for i, e := range slices.Backward(entries) {
		if strings.HasPrefix(e, "all before") {
			return entries[i:]
		}
	}
	return entries
}

// A caller waits for what there is, and not for what comes meanwhile, which may never end.
func TestWaitUnderLoad(t *testing.T) {
	t.Parallel()
	o := quiet()
	var k *keeper
	var over atomic.Bool
	o.BeforeWrite = func() error { // whenever something is written there is more
		if !over.Load() {
			k.Add([]string{"key"}, Encode(nil, []byte("more")))
		}
		return nil
	}
	k = keep(t, newMemory(), o)
	ctx, stop := context.WithTimeout(context.Background(), 20*time.Second)
	defer stop()
	k.Add([]string{"key"}, Encode(nil, []byte("first")))
	must(t, k.Sync(ctx))
	must(t, k.Wait(ctx, []string{"key"}))
	over.Store(true)
	must(t, k.Close())
}

// A rewrite is due until one has ended, and not once more for what was there meanwhile.
func TestDueOnce(t *testing.T) {
	t.Parallel()
	o := quiet()
	o.Floor = 100
	k := keep(t, newMemory(), o)
	must(t, k.put(strings.Repeat("a", 200)))
	<-k.Due()
	must(t, k.Begin())
	k.Switch()
	must(t, k.Sync(context.Background())) // though nothing was added since
	must(t, k.put("b"))
	must(t, k.End(context.Background()))
	select {
	case <-k.Due():
		t.Error("a rewrite is due again")
	default:
	}
	must(t, k.put(strings.Repeat("c", 300)))
	<-k.Due()
	must(t, k.Close())
}

// One sync serves all who wait.
func TestGroupCommit(t *testing.T) {
	t.Parallel()
	m := newMemory()
	k := keep(t, m, quiet())
	before := m.Changes()
	var all sync.WaitGroup
	resume := m.Stop() // a write takes until everybody is there
	for i := range 100 {
		k.Add([]string{fmt.Sprint(i)}, Encode(nil, fmt.Append(nil, i)))
		all.Go(func() { must(t, k.Wait(context.Background(), []string{fmt.Sprint(i)})) })
	}
	resume()
	all.Wait()
	if n := m.Changes() - before; n > 4 {
		t.Errorf("%d operations", n)
	}
	must(t, k.Wait(context.Background(), []string{"nobody's"}))
	must(t, k.Close())
}

// While the disk is full whoever waits is told, and so is who asks whether to begin something.
// What was added is written once there is room, and nothing of it is lost or doubled.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		k := keep(t, m, quiet())
		must(t, k.put("before"))
		m.Fail(syscall.ENOSPC)
		if err := k.put("meanwhile"); !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), "folder") {
			t.Fatalf("told %v", err)
		}
		if err := k.Err(); !errors.Is(err, syscall.ENOSPC) {
			t.Fatalf("the state is %v", err)
		}
		must(t, k.Wait(context.Background(), []string{"another key"}))
		time.AfterFunc(10*time.Second, func() {
			m.Fail(nil)
		})
		<-time.After(12 * time.Second)
		must(t, k.Err())
		must(t, k.put("after"))
		must(t, k.Close())
		again := keep(t, m.after(0, false, false), quiet())
		if want := []string{"before", "meanwhile", "after"}; !slices.Equal(again.entries, want) {
			t.Errorf("found %q", again.entries)
		}
		must(t, again.Close())
	})
}

// A disk that takes seconds is told of before the write is over.
func TestSlowDisk(t *testing.T) {
	t.Parallel()
	o := quiet()
	o.SlowAfter = time.Nanosecond
	m := newMemory()
	k := keep(t, m, o)
	resume := m.Stop()
	k.Add(nil, Encode(nil, []byte("slow")))
	for !errors.Is(k.Err(), errSlow) {
		<-time.After(time.Millisecond)
	}
	resume()
	must(t, k.Sync(context.Background()))
	must(t, k.Err())
	must(t, k.Close())
}

// onDisk makes a journal of three records in a folder.
func onDisk(t *testing.T) (path, name string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "a", "b")
	k, err := openKeeper(path, quiet())
	must(t, err)
	for _, e := range []string{"one", "two", "three"} {
		must(t, k.put(e))
	}
	must(t, k.Close())
	return path, filepath.Join(path, "journal-1")
}

// Each byte is damaged in turn: the start says which file, and what to do. Damage to the last
// record alone is a write that was cut short.
func TestDamage(t *testing.T) {
	t.Parallel()
	path, name := onDisk(t)
	whole, err := os.ReadFile(name)
	must(t, err)
	last := len(whole) - (recordSize + 1 + len("three"))
	for at := range whole {
		broken := slices.Clone(whole)
		broken[at] ^= 0x20
		must(t, os.WriteFile(name, broken, 0o600))
		var entries []string
		j, err := Open(path, quiet(), func(e []byte, _ Place) error { entries = append(entries, string(e)); return nil })
		switch {
		case at >= last:
			must(t, err)
			must(t, j.Close())
			if !slices.Equal(entries, []string{"one", "two"}) {
				t.Errorf("byte %d: found %q", at, entries)
			}
		case !errors.Is(err, errDamaged) || !strings.Contains(err.Error(), path):
			t.Fatalf("byte %d: %v, found %q", at, err, entries)
		}
	}
	must(t, os.WriteFile(name, whole, 0o600))
	must(t, os.Rename(name, filepath.Join(path, "journal-2")))
	if _, err := Open(path, quiet(), func([]byte, Place) error { return nil }); err == nil || !strings.Contains(err.Error(), "journal-1 is missing") {
		t.Errorf("a file is missing: %v", err)
	}
}

// A file of a newer version is refused by name.
func TestNewerFormat(t *testing.T) {
	t.Parallel()
	path, name := onDisk(t)
	b, err := os.ReadFile(name)
	must(t, err)
	must(t, os.WriteFile(name, []byte(strings.Replace(string(b), "journal 1", "journal 2", 1)), 0o600))
	if _, err := Open(path, quiet(), nil); err == nil || !strings.Contains(err.Error(), "journal-1 is written by a newer taskgate: it has format 2") {
		t.Error(err)
	}
}

// What format 1 wrote stays readable.
func TestReadsFormat1(t *testing.T) {
	t.Parallel()
	golden, err := os.ReadFile("testdata/journal-1")
	must(t, err)
	path := t.TempDir()
	must(t, os.WriteFile(filepath.Join(path, "journal-1"), golden, 0o600))
	var entries []string
	j, err := Open(path, quiet(), func(e []byte, _ Place) error { entries = append(entries, string(e)); return nil })
	must(t, err)
	must(t, j.Close())
	if !slices.Equal(entries, []string{"one", "two", "three"}) {
		t.Errorf("found %q", entries)
	}
}

// One process has a folder, and another learns which.
func TestSecondProcess(t *testing.T) {
	t.Parallel()
	path := t.TempDir()
	j, err := Open(path, quiet(), nil)
	must(t, err)
	_, err = Open(path, quiet(), nil)
	if want := fmt.Sprintf("in use by process %d:", os.Getpid()); err == nil || !strings.Contains(err.Error(), want) {
		t.Error(err)
	}
	must(t, j.Close())
	j, err = Open(path, quiet(), nil)
	must(t, err)
	must(t, j.Close())
}
