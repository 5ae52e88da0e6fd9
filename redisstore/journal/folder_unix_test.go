//go:build unix

package journal

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// A folder that is removed stays so: whoever waits hears of it. One that is moved away for a moment is no loss.
func TestFolderIsRemoved(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "store")
	o := quiet()
	o.RetryAfter = time.Millisecond
	k, err := openKeeper(path, o)
	must(t, err)
	must(t, k.put("before"))
	ctx, stop := context.WithCancel(t.Context())
	heard := make(chan error, 1)
	go func() { heard <- k.AwaitRemoval(ctx, time.Hour) }()
	must(t, os.RemoveAll(path))
	if err := k.put("meanwhile"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without the folder: %v", err)
	}
	if err := k.AwaitRemoval(t.Context(), 20*time.Millisecond); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a removed folder: %v", err)
	}
	stop()
	must(t, <-heard)
	_ = k.Close()
}

// A folder that is moved away, or replaced, takes no more entries until it is back: the next start would not find them.
func TestFolderIsMovedAway(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "store")
	o := quiet()
	o.RetryAfter = time.Millisecond
	k, err := openKeeper(path, o)
	must(t, err)
	must(t, k.put("before"))
	must(t, os.Rename(path, path+"-away"))
	if err := k.put("meanwhile"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without the folder: %v", err)
	}
	other, err := Open(path, quiet(), nil)
	must(t, err)
	for k.Err() == nil || errors.Is(k.Err(), fs.ErrNotExist) {
		<-time.After(time.Millisecond)
	}
	must(t, other.Close())
	must(t, os.RemoveAll(path))
	must(t, os.Rename(path+"-away", path))
	for k.Err() != nil {
		<-time.After(time.Millisecond)
	}
	must(t, k.put("after"))
	must(t, k.Close())
	again, err := openKeeper(path, quiet())
	must(t, err)
	if want := []string{"before", "meanwhile", "after"}; !slices.Equal(again.entries, want) {
		t.Errorf("found %q", again.entries)
	}
	must(t, again.Close())
}

// Nobody else reads what is kept.
func TestPermissions(t *testing.T) {
	t.Parallel()
	path, _ := onDisk(t)
	entries, err := os.ReadDir(path)
	must(t, err)
	for _, e := range entries {
		info, err := e.Info()
		must(t, err)
		if info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v", e.Name(), info.Mode())
		}
	}
	for _, dir := range []string{path, filepath.Dir(path)} {
		info, err := os.Stat(dir)
		must(t, err)
		if info.Mode().Perm() != 0o700 {
			t.Errorf("%s: %v", dir, info.Mode())
		}
	}
}
