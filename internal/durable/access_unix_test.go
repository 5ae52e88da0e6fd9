//go:build unix

package durable

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestAccessOfOthers: a folder that another user could change, or a file in it, is refused with the command that cures
// it; root can show it for owners and groups.
func TestAccessOfOthers(t *testing.T) {
	const other = 4711
	for name, c := range map[string]struct {
		spoil func(folder, file string) error
		says  string
		root  bool
	}{
		"nothing":               {spoil: func(string, string) error { return nil }},
		"a folder of everybody": {spoil: func(folder, _ string) error { return os.Chmod(folder, 0o777) }, says: "chmod o-w "},
		"a file of everybody":   {spoil: func(_, file string) error { return os.Chmod(file, 0o602) }, says: "chmod o-w "},
		"a link":                {spoil: func(folder, file string) error { return os.Symlink(file, filepath.Join(folder, "link")) }, says: "symbolic link"},
		"readers":               {spoil: func(folder, _ string) error { return os.Chmod(folder, 0o755) }},
		"another's folder":      {spoil: func(folder, _ string) error { return os.Chown(folder, other, -1) }, says: "chown 0 ", root: true},
		"another's file":        {spoil: func(_, file string) error { return os.Chown(file, other, -1) }, says: "chown 0 ", root: true},
		"a group of others": {root: true, says: "chmod g-w ", spoil: func(folder, _ string) error {
			if err := os.Chown(folder, 0, other); err != nil {
				return err
			}
			return os.Chmod(folder, 0o770)
		}},
		"a group of its own": {spoil: func(folder, _ string) error { return os.Chmod(folder, 0o770) }},
	} {
		if c.root && os.Geteuid() != 0 {
			continue
		}
		folder := filepath.Join(t.TempDir(), "folder")
		file := filepath.Join(folder, "file")
		if err := MakeFolder(folder); err != nil {
			t.Fatal(err)
		}
		if err := WriteFile(file, nil); err != nil {
			t.Fatal(err)
		}
		if err := c.spoil(folder, file); err != nil {
			t.Fatal(err)
		}
		warning, err := CheckAccess(folder)
		if warning != nil || (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, %v", name, warning, err)
		}
		if left, _ := filepath.Glob(filepath.Join(folder, ".modes-*")); len(left) > 0 {
			t.Errorf("%s: left %q", name, left)
		}
	}
}

// TestNewFileFollowsNoLink: a file that replaces another is written where no link leads.
func TestNewFileFollowsNoLink(t *testing.T) {
	folder := t.TempDir()
	path, victim := filepath.Join(folder, "file"), filepath.Join(folder, "victim")
	if err := os.Symlink(victim, path+".new"); err != nil {
		t.Fatal(err)
	}
	if err := WriteFile(path, []byte("secret")); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(victim); err == nil {
		t.Error("the link was followed")
	}
}

// wantPrivate wants a file or folder that is for this user alone.
func wantPrivate(t *testing.T, path string) {
	t.Helper()
	if info, err := os.Stat(path); err != nil || info.Mode().Perm()&0o077 != 0 {
		t.Errorf("%s: %v, %v", path, info, err)
	}
}
