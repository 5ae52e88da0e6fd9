package service

import (
	"bytes"
	"context"
	"io"
	"os"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/windows"
	"golang.org/x/sys/windows/svc"
	"golang.org/x/sys/windows/svc/eventlog"
)

// stopHint is how long the service manager is told that the end of a service may take. It allows the default of
// drain_timeout twice.
const stopHint = time.Minute

// Run calls run if the service manager of Windows has started this process, and returns its exit code; is is false
// otherwise. The context ends with a stop of the service, and with that of the system. A service has no standard error:
// what run writes to log, a line at a time, goes to the event log under a name.
func Run(name string, run func(ctx context.Context, log io.Writer) int) (code int, is bool) {
	if !isService() {
		return 0, false
	}
	s := &service{run: run, log: io.Discard}
	if log, err := eventlog.Open(name); err == nil {
		defer log.Close()
		s.log = eventWriter{log}
	}
	switch err := svc.Run(name, s); err {
	case nil:
	case windows.ERROR_FAILED_SERVICE_CONTROLLER_CONNECT: // the parent only has that name
		return 0, false
	default:
		return 1, true
	}
	return s.code, true
}

// isService reports whether the service manager has started this process: it is the parent then. (svc.IsWindowsService
// also looks for session 0, which wine has not.)
func isService() bool {
	all, err := windows.CreateToolhelp32Snapshot(windows.TH32CS_SNAPPROCESS, 0)
	if err != nil {
		return false
	}
	defer windows.CloseHandle(all)
	parent := uint32(os.Getppid())
	one := windows.ProcessEntry32{Size: uint32(unsafe.Sizeof(windows.ProcessEntry32{}))}
	for err = windows.Process32First(all, &one); err == nil; err = windows.Process32Next(all, &one) {
		if one.ProcessID == parent {
			return strings.EqualFold(windows.UTF16ToString(one.ExeFile[:]), "services.exe")
		}
	}
	return false
}

// service is what runs as a service.
type service struct {
	run  func(ctx context.Context, log io.Writer) int
	log  io.Writer
	code int
}

// Execute implements svc.Handler.
func (s *service) Execute(_ []string, requests <-chan svc.ChangeRequest, status chan<- svc.Status) (ofService bool, code uint32) {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	ended := make(chan int, 1)
	go func() { ended <- s.run(ctx, s.log) }()
	status <- svc.Status{State: svc.Running, Accepts: svc.AcceptStop | svc.AcceptPreShutdown}
	for {
		select {
		case s.code = <-ended:
			return s.code != 0, uint32(s.code)
		case r := <-requests:
			switch r.Cmd {
			case svc.Interrogate:
				status <- r.CurrentStatus
			case svc.Stop, svc.PreShutdown:
				status <- svc.Status{State: svc.StopPending, WaitHint: uint32(stopHint.Milliseconds())}
				stop()
			}
		}
	}
}

// eventWriter writes each line of the log as an event.
type eventWriter struct{ log *eventlog.Log }

// Write takes one line.
func (w eventWriter) Write(line []byte) (int, error) {
	write, text := w.log.Info, string(bytes.TrimSpace(line))
	switch {
	case bytes.Contains(line, []byte("level=ERROR")) || bytes.Contains(line, []byte(`"level":"ERROR"`)):
		write = w.log.Error
	case bytes.Contains(line, []byte("level=WARN")) || bytes.Contains(line, []byte(`"level":"WARN"`)):
		write = w.log.Warning
	}
	return len(line), write(1, text)
}
