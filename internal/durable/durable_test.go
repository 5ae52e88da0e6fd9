package durable

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// Each folder is synced that has got a new name, from above.
func TestMakeFolder(t *testing.T) {
	t.Parallel()
	top := t.TempDir()
	path := filepath.Join(top, "a", "b")
	var synced []string
	sync := func(path string) error { synced = append(synced, path); return nil }
	for range 2 {
		if err := makeFolder(path, sync); err != nil {
			t.Fatal(err)
		}
	}
	if want := []string{top, filepath.Join(top, "a")}; !slices.Equal(synced, want) {
		t.Errorf("synced %q, want %q", synced, want)
	}
	for _, made := range []string{path, filepath.Dir(path)} {
		wantPrivate(t, made)
	}
	failed := errors.New("no")
	if err := makeFolder(filepath.Join(path, "c"), func(string) error { return failed }); !errors.Is(err, failed) {
		t.Errorf("a sync that fails: %v", err)
	}
	file := filepath.Join(path, "file")
	if err := errors.Join(WriteFile(file, nil), MakeFolder(filepath.Join(top, "x"))); err != nil {
		t.Fatal(err)
	}
	for _, no := range []string{file, filepath.Join(file, "below")} {
		if err := MakeFolder(no); err == nil {
			t.Errorf("%s was made", no)
		}
	}
}

// A file that has its name is synced, and then its folder is.
func TestWriteFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "folder", "file")
	if err := MakeFolder(filepath.Dir(path)); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"one", "two"} {
		synced := ""
		err := writeFile(path, []byte(text), func(dir string) error {
			got, err := os.ReadFile(path)
			synced = dir + " " + string(got)
			return err
		})
		if want := filepath.Dir(path) + " " + text; err != nil || synced != want {
			t.Errorf("synced %q, want %q: %v", synced, want, err)
		}
	}
	wantPrivate(t, path)
	if left, err := filepath.Glob(path + ".*"); err != nil || len(left) != 0 {
		t.Errorf("left %q, %v", left, err)
	}
}
