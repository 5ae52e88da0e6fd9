package proc

import (
	"io"
	"strings"

	"golang.org/x/sys/windows"
)

// reserve keeps a port from the FreeAddr of other processes: by a mutex with the name of the address. (Wine has not all
// that Go needs for UDP.)
func reserve(addr string) (io.Closer, error) {
	name, err := windows.UTF16PtrFromString(`Local\taskgate-` + strings.ReplaceAll(addr, ":", "-"))
	if err != nil {
		return nil, err
	}
	held, err := windows.CreateMutex(nil, false, name)
	if err != nil { // also if another process has it
		if held != 0 {
			windows.CloseHandle(held)
		}
		return nil, err
	}
	return mutex(held), nil
}

// mutex is one that is held by being open.
type mutex windows.Handle

// Close implements io.Closer.
func (m mutex) Close() error { return windows.CloseHandle(windows.Handle(m)) }
