//go:build unix

package durable

import (
	"errors"
	"os"
)

// makePrivate makes a folder for this user alone.
func makePrivate(path string) error { return os.Mkdir(path, 0o700) }

// replace gives a file the name of another one, which is gone then.
func replace(file, other string) error { return os.Rename(file, other) }

// SyncFolder makes durable which files a folder has.
func SyncFolder(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
