package durable

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/windows"
)

// wantPrivate wants a file or folder that nobody else may change.
func wantPrivate(t *testing.T, path string) {
	t.Helper()
	if err := checkAccess(path, os.Lstat); err != nil {
		t.Error(err)
	}
}

// setRights replaces the access list of a file or folder.
func setRights(t *testing.T, path, rights string) {
	t.Helper()
	sd, err := windows.SecurityDescriptorFromString(rights)
	if err != nil {
		t.Fatal(err)
	}
	list, _, err := sd.DACL()
	if err == nil {
		err = windows.SetNamedSecurityInfo(path, windows.SE_FILE_OBJECT, windows.DACL_SECURITY_INFORMATION|windows.PROTECTED_DACL_SECURITY_INFORMATION, nil, nil, list, nil)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestAccessOfOthers: a folder that everybody could change, or a file in it, is refused with the command that cures it.
func TestAccessOfOthers(t *testing.T) {
	for name, c := range map[string]struct {
		folder, file string
		wrong        bool
	}{
		"readers":   {folder: "D:P(A;;FA;;;OW)(A;;FR;;;WD)", file: "D:P(A;;FA;;;OW)(A;;FR;;;WD)"},
		"a folder":  {folder: "D:P(A;;FA;;;OW)(A;;FRFW;;;WD)", wrong: true},
		"a file":    {file: "D:P(A;;FA;;;OW)(A;;FRFW;;;WD)", wrong: true},
		"untouched": {},
	} {
		folder := filepath.Join(t.TempDir(), "folder")
		file := filepath.Join(folder, "file")
		if err := MakeFolder(folder); err != nil {
			t.Fatal(err)
		}
		if err := WriteFile(file, nil); err != nil {
			t.Fatal(err)
		}
		if c.file != "" {
			setRights(t, file, c.file)
		}
		if c.folder != "" {
			setRights(t, folder, c.folder)
		}
		warning, err := CheckAccess(folder)
		if warning != nil || (err != nil) != c.wrong || err != nil && !strings.Contains(err.Error(), " /remove *S-1-1-0") {
			t.Errorf("%s: %v, %v", name, warning, err)
		}
	}
}

// TestReplaceWaits: a file that another program has open for a moment is replaced once that has closed it.
func TestReplaceWaits(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if err := WriteFile(path, []byte("old")); err != nil {
		t.Fatal(err)
	}
	held, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(50*time.Millisecond, func() { held.Close() })
	if err := WriteFile(path, []byte("new")); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(path); err != nil || string(text) != "new" {
		t.Errorf("%q, %v", text, err)
	}
}
