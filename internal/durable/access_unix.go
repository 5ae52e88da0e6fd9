//go:build unix

package durable

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
)

// errModeless says that a file system keeps no modes, such as FAT.
var errModeless = errors.New("the file system keeps no modes: whoever can reach the folder can read and change what is in it")

// CheckAccess returns an error if another user could change a folder or a file in it: one that others, or a group of
// which this process is no member, may write, or that belongs to another user than this one or root. Its text has the
// command that cures it. A symbolic link in the folder is an error, too. warning is set where the file system keeps no
// modes.
func CheckAccess(folder string) (warning, err error) {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return nil, err
	}
	err = checkAccess(folder, os.Stat)
	for _, entry := range entries {
		if err == nil {
			err = checkAccess(filepath.Join(folder, entry.Name()), os.Lstat)
		}
	}
	if err != nil && !keepsModes(folder) {
		return errModeless, nil
	}
	return nil, err
}

func checkAccess(path string, stat func(string) (fs.FileInfo, error)) error {
	info, err := stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // it was removed meanwhile
	}
	if err != nil {
		return err
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return nil
	}
	groups, err := os.Getgroups()
	switch mode := info.Mode(); {
	case err != nil:
		return err
	case mode&fs.ModeSymlink != 0:
		return fmt.Errorf("%s is a symbolic link: remove it", path)
	case owner.Uid != 0 && int(owner.Uid) != os.Geteuid():
		return fmt.Errorf("%s belongs to another user (%d), who could change it: chown %d %s", path, owner.Uid, os.Geteuid(), path)
	case mode&0o002 != 0:
		return fmt.Errorf("everybody may write to %s: chmod o-w %s", path, path)
	case mode&0o020 != 0 && int(owner.Gid) != os.Getegid() && !slices.Contains(groups, int(owner.Gid)):
		return fmt.Errorf("a group of others (%d) may write to %s: chmod g-w %s", owner.Gid, path, path)
	}
	return nil
}

// keepsModes reports whether a new file in a folder is for this user alone.
func keepsModes(folder string) bool {
	f, err := os.CreateTemp(folder, ".modes-")
	if err != nil {
		return true // nothing shows that it keeps none
	}
	defer os.Remove(f.Name())
	defer f.Close()
	info, err := f.Stat()
	return err != nil || info.Mode().Perm()&0o077 == 0
}
