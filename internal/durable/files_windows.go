package durable

import (
	"errors"
	"io/fs"
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/windows"
)

// makePrivate makes a folder for this user, the system and administrators, and so is what is made in it. Otherwise a
// folder has the rights of that above it, which outside of a profile may let everybody write.
func makePrivate(path string) error {
	me, err := thisUser()
	if err != nil {
		return err
	}
	rights, err := windows.SecurityDescriptorFromString("D:P(A;OICI;FA;;;SY)(A;OICI;FA;;;BA)(A;OICI;FA;;;" + me.String() + ")")
	if err != nil {
		return err
	}
	name, err := windows.UTF16PtrFromString(path)
	if err == nil {
		err = windows.CreateDirectory(name, &windows.SecurityAttributes{Length: uint32(unsafe.Sizeof(windows.SecurityAttributes{})), SecurityDescriptor: rights})
	}
	if err != nil {
		return &fs.PathError{Op: "mkdir", Path: path, Err: err}
	}
	return nil
}

// replacePatience is how long a file may be held by a program that looks into each new one, as virus scanners do.
const replacePatience = 2 * time.Second

// replace gives a file the name of another one, which is gone then, and returns once that is on the disk. While a
// program has either of them open, Windows refuses that.
func replace(file, other string) error {
	from, err := windows.UTF16PtrFromString(file)
	if err != nil {
		return err
	}
	to, err := windows.UTF16PtrFromString(other)
	if err != nil {
		return err
	}
	for begin := time.Now(); ; {
		err = windows.MoveFileEx(from, to, windows.MOVEFILE_REPLACE_EXISTING|windows.MOVEFILE_WRITE_THROUGH)
		held := errors.Is(err, windows.ERROR_ACCESS_DENIED) || errors.Is(err, windows.ERROR_SHARING_VIOLATION)
		if err == nil || !held || time.Since(begin) > replacePatience {
			break
		}
		<-time.After(10 * time.Millisecond) // nothing tells when it is closed
	}
	if err != nil {
		return &os.LinkError{Op: "rename", Old: file, New: other, Err: err}
	}
	return nil
}

// SyncFolder finds out that a folder is there: it cannot be synced. NTFS makes the name of a file durable when the file
// is synced, and a removal that is undone by a power cut does no harm to whoever allows for it after a crash.
func SyncFolder(path string) error {
	_, err := os.Stat(path)
	return err
}
