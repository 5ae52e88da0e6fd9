package procgroup

import (
	"errors"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/windows"
)

// killedStatus is the exit status of what Kill ends; no program chooses it.
const killedStatus = uint32(windows.STATUS_CONTROL_C_EXIT)

// Group is a child that was started, with its descendants: a job object. A process cannot leave it.
type Group struct {
	cmd *exec.Cmd

	mu  sync.Mutex
	job windows.Handle // 0 once it is closed
}

// Start starts a command in a job object, which ends with this process at the latest. The child has a console of its
// own, without a window: what is typed into that of this process, and closing it, does not reach the child. A batch
// file gets its arguments as they are, or Start fails (see batchLine).
func Start(cmd *exec.Cmd) (*Group, error) {
	attr := &syscall.SysProcAttr{CreationFlags: windows.CREATE_SUSPENDED | windows.CREATE_NEW_PROCESS_GROUP | windows.CREATE_NO_WINDOW}
	cmd.SysProcAttr = attr
	if isBatch(cmd.Path) {
		attr.CmdLine, cmd.Err = batchLine(cmd.Path, cmd.Args[1:])
		cmd.Path = shell()
	}
	job, err := newJob()
	if err != nil {
		cmd.Err = err // with which cmd.Start closes pipes
	}
	if err := cmd.Start(); err != nil {
		windows.CloseHandle(job)
		return nil, err
	}
	var assigned error
	err = cmd.Process.WithHandle(func(process uintptr) {
		assigned = windows.AssignProcessToJobObject(job, windows.Handle(process))
	})
	if err = errors.Join(err, assigned); err == nil {
		err = resume(uint32(cmd.Process.Pid))
	}
	if err != nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // the error above tells more
		windows.CloseHandle(job)
		return nil, err
	}
	return &Group{cmd: cmd, job: job}, nil
}

// shell is the program that runs batch files, wherever a PATH leads.
func shell() string {
	folder, err := windows.GetSystemDirectory()
	if err != nil {
		folder = `C:\Windows\System32`
	}
	return filepath.Join(folder, "cmd.exe")
}

// newJob makes a job object that ends its processes with its last handle.
func newJob() (windows.Handle, error) {
	job, err := windows.CreateJobObject(nil, nil)
	if err != nil {
		return 0, err
	}
	var limits windows.JOBOBJECT_EXTENDED_LIMIT_INFORMATION
	limits.BasicLimitInformation.LimitFlags = windows.JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE
	_, err = windows.SetInformationJobObject(job, windows.JobObjectExtendedLimitInformation, uintptr(unsafe.Pointer(&limits)), uint32(unsafe.Sizeof(limits)))
	if err != nil {
		windows.CloseHandle(job)
		return 0, err
	}
	return job, nil
}

// errNoThread says that a process that was just started has no thread.
var errNoThread = errors.New("the process has no thread")

// resume lets a suspended process run, which has one thread.
func resume(pid uint32) error {
	all, err := windows.CreateToolhelp32Snapshot(windows.TH32CS_SNAPTHREAD, 0)
	if err != nil {
		return err
	}
	defer windows.CloseHandle(all)
	var one windows.ThreadEntry32
	one.Size = uint32(unsafe.Sizeof(one))
	for err = windows.Thread32First(all, &one); err == nil; err = windows.Thread32Next(all, &one) {
		if one.OwnerProcessID == pid {
			thread, err := windows.OpenThread(windows.THREAD_SUSPEND_RESUME, false, one.ThreadID)
			if err != nil {
				return err
			}
			defer windows.CloseHandle(thread)
			_, err = windows.ResumeThread(thread)
			return err
		}
	}
	return errNoThread
}

// Terminate ends the group: a process without a window cannot be asked to end otherwise than by closing its input.
func (g *Group) Terminate() { g.Kill() }

// Kill ends every process of the group at once. The group outlives the child while it has other members.
func (g *Group) Kill() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.job != 0 {
		_ = windows.TerminateJobObject(g.job, killedStatus) // they may be gone
	}
}

// Wait waits for the end of the child, and returns how it ended: "exit status 1". Whoever calls it does not wait for
// the command.
func (g *Group) Wait() string {
	state, err := g.cmd.Process.Wait()
	switch {
	case err != nil:
		return err.Error()
	case uint32(state.ExitCode()) == killedStatus:
		return "signal: killed"
	}
	return state.String()
}

// Reap gives a killed group back to the system. The caller has waited for the child before.
func (g *Group) Reap() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.job != 0 {
		windows.CloseHandle(g.job)
		g.job = 0
	}
}
