//go:build unix

package durable

import (
	"fmt"
	"io/fs"
	"os"
	"slices"
	"syscall"
)

// checkOthers returns an error if another user could change a file or folder.
func checkOthers(path string, info fs.FileInfo) error {
	owner, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return nil
	}
	groups, err := os.Getgroups()
	switch mode := info.Mode(); {
	case err != nil:
		return err
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
