package journal

import (
	"errors"
	"io"
	"io/fs"
	"maps"
	"slices"
	"sync"
)

// memory is a folder that forgets at a power cut what was not synced: of a file what was
// written since its last sync, of the folder which files were made or removed.
type memory struct {
	mu     sync.Mutex
	files  map[string]*content
	synced map[string]*content
	left   int   // operations until the power goes; negative for never
	fails  error // of each write and sync, while there is one
	ops    int
}

// content is what a file has, and what was written since its last sync.
type content struct {
	data   []byte
	synced []byte
}

var errPower = errors.New("the power is cut")

func newMemory() *memory {
	return &memory{files: map[string]*content{}, synced: map[string]*content{}, left: -1}
}

// step counts an operation that changes something. m.mu is held.
func (m *memory) step() error {
	m.ops++
	if m.left == 0 {
		return errPower
	}
	if m.left > 0 {
		m.left--
	}
	return m.fails
}

func (m *memory) Names() ([]string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Collect(maps.Keys(m.files)), nil
}

func (m *memory) Open(name string, create bool) (file, error) {
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
	return &memoryFile{m, c}, nil
}

func (m *memory) Remove(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.step(); err != nil {
		return err
	}
	delete(m.files, name)
	return nil
}

func (m *memory) Sync() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.step(); err != nil {
		return err
	}
	m.synced = maps.Clone(m.files)
	return nil
}

func (m *memory) Close() error { return nil }

type memoryFile struct {
	m *memory
	c *content
}

func (f *memoryFile) ReadAt(p []byte, at int64) (int, error) {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	n := copy(p, f.c.data[min(at, int64(len(f.c.data))):])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

func (f *memoryFile) WriteAt(p []byte, at int64) (int, error) {
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
func (f *memoryFile) write(p []byte, at int64) {
	data := slices.Clone(f.c.data[:at])
	f.c.data = append(data, p...)
}

func (f *memoryFile) Size() (int64, error) {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	return int64(len(f.c.data)), nil
}

func (f *memoryFile) Truncate(size int64) error {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	if err := f.m.step(); err != nil {
		return err
	}
	f.c.data = slices.Clone(f.c.data[:size])
	return nil
}

func (f *memoryFile) Sync() error {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	if err := f.m.step(); err != nil {
		return err
	}
	f.c.synced = f.c.data
	return nil
}

func (f *memoryFile) Close() error { return nil }

// after is the folder that a start after a power cut finds. Of what was not synced to a file,
// keep says how many bytes have reached it all the same, and whether those before are lost
// (they read as zeros). Whether the folder kept what was not synced of it is unsynced.
func (m *memory) after(keep int, holes, unsynced bool) *memory {
	m.mu.Lock()
	defer m.mu.Unlock()
	found := m.synced
	if unsynced {
		found = m.files
	}
	next := newMemory()
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
