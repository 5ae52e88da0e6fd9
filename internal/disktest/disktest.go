// Package disktest is a folder in memory that loses at a power cut what was not synced.
package disktest

import (
	"errors"
	"io"
	"io/fs"
	"maps"
	"slices"
	"sync"
)

// Folder is a folder that forgets at a power cut what was not synced: of a file what was
// written since its last sync, of the folder which files were made or removed.
type Folder struct {
	mu     sync.Mutex
	left   int   // operations until the power goes; negative for never
	fails  error // of each operation that changes something, while there is one
	ops    int
	files  map[string]*content
	synced map[string]*content
}

// content is what a file has, and what was written since its last sync.
type content struct {
	data   []byte
	synced []byte
}

// ErrPower is the error of each operation once the power is cut.
var ErrPower = errors.New("the power is cut")

// NewFolder makes an empty folder.
func NewFolder() *Folder {
	return &Folder{files: map[string]*content{}, synced: map[string]*content{}, left: -1}
}

// CutPower ends the power after so many operations that change something: each later one fails. Negative is never.
func (m *Folder) CutPower(after int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.left = after
}

// Changes returns how many operations have changed something, or tried to.
func (m *Folder) Changes() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.ops
}

// Stop has all operations wait until resume is called.
func (m *Folder) Stop() (resume func()) {
	m.mu.Lock()
	return m.mu.Unlock
}

// Fail has each operation that changes something fail from now on; nil ends that.
func (m *Folder) Fail(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fails = err
}

// step counts an operation that changes something. m.mu is held.
func (m *Folder) step() error {
	m.ops++
	if m.left == 0 {
		return ErrPower
	}
	if m.left > 0 {
		m.left--
	}
	return m.fails
}

// Names lists the files.
func (m *Folder) Names() ([]string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Collect(maps.Keys(m.files)), nil
}

// Open opens a file, or makes it if create is true.
func (m *Folder) Open(name string, create bool) (*File, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.files[name]
	switch {
	case create && c != nil:
		return nil, fs.ErrExist
	case create:
		if err := m.step(); err != nil {
			return nil, err
		}
		c = &content{}
		m.files[name] = c
	case c == nil:
		return nil, fs.ErrNotExist
	}
	return &File{m, c}, nil
}

// Remove removes a file.
func (m *Folder) Remove(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.step(); err != nil {
		return err
	}
	delete(m.files, name)
	return nil
}

// Sync makes durable which files exist.
func (m *Folder) Sync() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.step(); err != nil {
		return err
	}
	m.synced = maps.Clone(m.files)
	return nil
}

// Close gives the folder back.
func (m *Folder) Close() error { return nil }

// File is an open file.
type File struct {
	m *Folder
	c *content
}

// ReadAt implements io.ReaderAt.
func (f *File) ReadAt(p []byte, at int64) (int, error) {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	n := copy(p, f.c.data[min(at, int64(len(f.c.data))):])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

// WriteAt implements io.WriterAt. A write that fails is half done.
func (f *File) WriteAt(p []byte, at int64) (int, error) {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	if err := f.m.step(); err != nil {
		n := len(p) / 2 // a write may fail halfway
		f.write(p[:n], at)
		return n, err
	}
	f.write(p, at)
	return len(p), nil
}

// write writes to what is not synced. f.m.mu is held.
func (f *File) write(p []byte, at int64) {
	data := slices.Clone(f.c.data[:at])
	f.c.data = append(data, p...)
}

// Size returns how many bytes the file has.
func (f *File) Size() (int64, error) {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	return int64(len(f.c.data)), nil
}

// Truncate cuts the file off.
func (f *File) Truncate(size int64) error {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	if err := f.m.step(); err != nil {
		return err
	}
	f.c.data = slices.Clone(f.c.data[:size])
	return nil
}

// Sync makes durable what was written.
func (f *File) Sync() error {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	if err := f.m.step(); err != nil {
		return err
	}
	f.c.synced = f.c.data
	return nil
}

// Close closes the file.
func (f *File) Close() error { return nil }

// After is the folder that a start after a power cut finds. Of what was not synced to a file,
// keep says how many bytes have reached it all the same, and whether those before are lost
// (they read as zeros). Whether the folder kept what was not synced of it is unsynced.
func (m *Folder) After(keep int, holes, unsynced bool) *Folder {
	m.mu.Lock()
	defer m.mu.Unlock()
	found := m.synced
	if unsynced {
		found = m.files
	}
	next := NewFolder()
	for name, c := range found {
		data := slices.Clone(c.synced)
		if rest := c.data[min(len(c.synced), len(c.data)):]; keep > 0 && len(rest) > 0 {
			rest = slices.Clone(rest[:min(keep, len(rest))])
			if holes {
				clear(rest[:len(rest)/2])
			}
			data = append(data, rest...)
		}
		next.files[name] = &content{data: data, synced: data}
	}
	next.synced = maps.Clone(next.files)
	return next
}
