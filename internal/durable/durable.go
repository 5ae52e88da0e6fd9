// Package durable makes folders and files that survive a power cut. A file system keeps the content
// of a file once that is synced, and its name once its folder is; Windows, where no folder can be synced, keeps the
// name with the content.
package durable

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// MakeFolder makes a folder and the missing ones above it, for this user alone.
func MakeFolder(path string) error { return makeFolder(path, SyncFolder) }

func makeFolder(path string, sync func(path string) error) error {
	info, err := os.Stat(path)
	switch {
	case err == nil && !info.IsDir():
		return &fs.PathError{Op: "mkdir", Path: path, Err: errors.New("not a folder")}
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	above := filepath.Dir(path)
	if err := makeFolder(above, sync); err != nil {
		return err
	}
	if err := makePrivate(path); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return sync(above)
}

// WriteFile makes or replaces a file, for this user alone. After a crash the file is whole: either
// the old one or the new one.
func WriteFile(path string, text []byte) error { return writeFile(path, text, SyncFolder) }

func writeFile(path string, text []byte, sync func(path string) error) error {
	// What a crash, or somebody else, has left there is not written into: it may be a link.
	if err := os.Remove(path + ".new"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(path+".new", os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := replace(path+".new", path); err != nil {
		return err
	}
	return sync(filepath.Dir(path))
}
