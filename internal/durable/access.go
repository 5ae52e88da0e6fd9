package durable

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// errModeless says that a file system keeps no access rights, such as FAT.
var errModeless = errors.New("the file system keeps no modes: whoever can reach the folder can read and change what is in it")

// CheckAccess returns an error if another user could change a folder or a file in it: on Unix one that others, or a
// group of which this process is no member, may write, or that belongs to another user than this one or root; on Windows
// one that anybody but this user, the system and administrators may change. Its text has the command that cures it. A
// symbolic link in the folder is an error, too. warning is set where the file system keeps no access rights.
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
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil // it was removed meanwhile
	case err != nil:
		return err
	case info.Mode()&fs.ModeSymlink != 0:
		return fmt.Errorf("%s is a symbolic link: remove it", path)
	}
	return checkOthers(path, info)
}
