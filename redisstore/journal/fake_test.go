package journal

import "taskgate/internal/disktest"

// memory is a folder in memory.
type memory struct{ *disktest.Folder }

func newMemory() memory { return memory{disktest.NewFolder()} }

func (m memory) Open(name string, create bool) (File, error) {
	f, err := m.Folder.Open(name, create)
	if err != nil {
		return nil, err
	}
	return f, nil
}

func (m memory) after(keep int, holes, unsynced bool) memory {
	return memory{m.After(keep, holes, unsynced)}
}
