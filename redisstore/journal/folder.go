package journal

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/gofrs/flock"

	"taskgate/internal/durable"
)

// Folder is where the files are. The folder of a test loses what was not synced.
type Folder interface {
	// Names lists the files.
	Names() ([]string, error)
	// Open opens a file, or makes it if create is true.
	Open(name string, create bool) (File, error)
	// Remove removes a file.
	Remove(name string) error
	// Sync makes durable which files exist.
	Sync() error
	// Close gives the folder back.
	Close() error
}

// File is an open file.
type File interface {
	io.ReaderAt
	io.WriterAt
	io.Closer
	Size() (int64, error)
	Truncate(size int64) error
	// Sync makes durable what was written.
	Sync() error
}

// disk is a folder of the file system that this process has for itself.
type disk struct {
	path string
	lock *flock.Flock
}

// openDisk makes the folder if need be, refuses one that another user could change, and locks it for this process. The
// lock ends with the process in any case.
func openDisk(path string, log *slog.Logger) (*disk, error) {
	if err := durable.MakeFolder(path); err != nil {
		return nil, err
	}
	switch warning, err := durable.CheckAccess(path); {
	case err != nil:
		return nil, err
	case warning != nil:
		log.Warn("others may read what is stored", "folder", path, "err", warning)
	}
	lock := flock.New(filepath.Join(path, "lock"), flock.SetPermissions(0o600))
	switch held, err := lock.TryLock(); {
	case err != nil:
		return nil, fmt.Errorf("lock %s: %w", path, err)
	case !held:
		holder, _ := os.ReadFile(filepath.Join(path, process)) // the error names the process
		return nil, &InUseError{Path: path, Process: cmp.Or(strings.TrimSpace(string(holder)), "(unknown)")}
	}
	// The file only serves that error. A failed write is ignored: a full disk can still be read.
	_ = durable.WriteFile(filepath.Join(path, process), []byte(strconv.Itoa(os.Getpid())+"\n"))
	return &disk{path: path, lock: lock}, nil
}

// InUseError says that another process has a folder.
type InUseError struct {
	Path    string
	Process string // its id, in words
}

// Error implements error.
func (e *InUseError) Error() string {
	return fmt.Sprintf("%s is in use by process %s: end that one, or give this one a folder of its own (store: file:FOLDER)", e.Path, e.Process)
}

// process is the file with the id of the process that has the lock.
const process = "process"

// Close implements Folder.
func (d *disk) Close() error { return d.lock.Close() }

// Names implements Folder.
func (d *disk) Names() ([]string, error) {
	entries, err := os.ReadDir(d.path)
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	return names, err
}

// Open implements Folder.
func (d *disk) Open(name string, create bool) (File, error) {
	flags := os.O_RDWR
	if create {
		flags |= os.O_CREATE | os.O_EXCL
	}
	f, err := os.OpenFile(filepath.Join(d.path, name), flags, 0o600)
	if err != nil {
		return nil, err
	}
	return diskFile{f}, nil
}

// Remove implements Folder.
func (d *disk) Remove(name string) error { return os.Remove(filepath.Join(d.path, name)) }

// Sync implements Folder.
func (d *disk) Sync() error { return durable.SyncFolder(d.path) }

// diskFile is a file of the file system.
type diskFile struct{ *os.File }

// Size implements File.
func (f diskFile) Size() (int64, error) {
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

// errReplaced says that there is another file in the place of one that is written.
var errReplaced = errors.New("is another file now")

// Sync implements File. A file that somebody has removed, or moved away with its folder, is an error: it takes
// what is written, and the next start would not find it.
func (f diskFile) Sync() error {
	if err := f.File.Sync(); err != nil {
		return err
	}
	there, err := os.Stat(f.Name())
	if err != nil {
		return err
	}
	mine, err := f.Stat()
	if err == nil && !os.SameFile(mine, there) {
		err = fmt.Errorf("%s %w", f.Name(), errReplaced)
	}
	return err
}
