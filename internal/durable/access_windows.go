package durable

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"unsafe"

	"golang.org/x/sys/windows"
)

// changing are the rights by which a file or a folder, or what others may do with it, can be changed.
const changing = windows.FILE_WRITE_DATA | windows.FILE_APPEND_DATA | windows.DELETE | fileDeleteChild |
	windows.WRITE_DAC | windows.WRITE_OWNER | windows.GENERIC_WRITE | windows.GENERIC_ALL

const fileDeleteChild = 0x40 // FILE_DELETE_CHILD

// checkOthers returns an error if another user could change a file or folder: who owns it, or whom an entry of its
// access list allows that. Entries that forbid something do not count, and neither do those of administrators.
func checkOthers(path string, info fs.FileInfo) error {
	me, err := thisUser()
	if err != nil {
		return err
	}
	rights, err := windows.GetNamedSecurityInfo(path, windows.SE_FILE_OBJECT, windows.OWNER_SECURITY_INFORMATION|windows.DACL_SECURITY_INFORMATION)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // it was removed meanwhile
	}
	if err != nil {
		return &fs.PathError{Op: "read the access list", Path: path, Err: err}
	}
	owner, _, err := rights.Owner()
	if err != nil {
		return err
	}
	if !isTrusted(owner, me) {
		return fmt.Errorf("%s belongs to another user (%s), who could change it: takeown /f \"%s\"", path, nameOf(owner), path)
	}
	list, _, err := rights.DACL()
	if err != nil || list == nil { // without a list everybody may do anything
		return fmt.Errorf("everybody may write to %s: icacls \"%s\" /reset", path, path)
	}
	for i := range uint32(list.AceCount) {
		var entry *windows.ACCESS_ALLOWED_ACE
		if err := windows.GetAce(list, i, &entry); err != nil {
			return err
		}
		h := entry.Header
		if h.AceType != windows.ACCESS_ALLOWED_ACE_TYPE || h.AceFlags&windows.INHERIT_ONLY_ACE != 0 || entry.Mask&changing == 0 {
			continue
		}
		if who := (*windows.SID)(unsafe.Pointer(&entry.SidStart)); !isTrusted(who, me) {
			below := ""
			if info.IsDir() {
				below = "(OI)(CI)"
			}
			return fmt.Errorf("%s may write to %s: icacls \"%s\" /inheritance:r /grant:r *%s:%sF /remove *%s", nameOf(who), path, path, me, below, who)
		}
	}
	return nil
}

// thisUser is the user of this process.
func thisUser() (*windows.SID, error) {
	user, err := windows.GetCurrentProcessToken().GetTokenUser()
	if err != nil {
		return nil, err
	}
	return user.User.Sid, nil
}

// isTrusted reports whether somebody may change everything here anyway.
func isTrusted(who, me *windows.SID) bool {
	return who.Equals(me) || who.IsWellKnown(windows.WinLocalSystemSid) || who.IsWellKnown(windows.WinBuiltinAdministratorsSid) ||
		who.IsWellKnown(windows.WinAccountDomainAdminsSid) || who.IsWellKnown(windows.WinCreatorOwnerRightsSid)
}

// nameOf is the name of a user or a group; its SID if it has none.
func nameOf(who *windows.SID) string {
	account, domain, _, err := who.LookupAccount("")
	if err != nil {
		return who.String()
	}
	return filepath.Join(domain, account)
}

// keepsModes reports whether the volume of a folder keeps access lists.
func keepsModes(folder string) bool {
	var root [windows.MAX_PATH + 1]uint16
	var flags uint32
	name, err := windows.UTF16PtrFromString(folder)
	if err == nil {
		err = windows.GetVolumePathName(name, &root[0], uint32(len(root)))
	}
	if err == nil {
		err = windows.GetVolumeInformation(&root[0], nil, 0, nil, nil, &flags, nil, 0)
	}
	return err != nil || flags&windows.FILE_PERSISTENT_ACLS != 0
}
