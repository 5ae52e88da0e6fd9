package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/procfs"
)

// spareFiles are the file descriptors that a process needs besides those of the calls.
const spareFiles = 1000

// raiseFiles raises the limit of open files, which the children inherit, to what the system
// allows at most.
func raiseFiles(calls int) error {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return err
	}
	if limit.Cur = limit.Max; limit.Cur < uint64(calls+spareFiles) {
		return fmt.Errorf("the hard limit of open files is %d: raise it with ulimit -Hn %d, or measure less", limit.Cur, calls+spareFiles)
	}
	return syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit)
}

// usage is what the gateway and Redis have used so far.
type usage struct {
	resident int64 // bytes
	cpu      time.Duration
	commands int64 // of Redis; those that scripts make count, too
}

func (st *stage) usage() (u usage, err error) {
	of, err := statOf(st.gatewayProcess.PID())
	if err != nil {
		return u, err
	}
	u.resident, u.cpu = int64(of.ResidentMemory()), time.Duration(of.CPUTime()*float64(time.Second))
	u.commands, err = commandsOf(st.redis)
	return u, err
}

// since is what was used after another reading.
func (u usage) since(before usage) usage {
	return usage{resident: u.resident, cpu: u.cpu - before.cpu, commands: u.commands - before.commands}
}

// statOf is what the system says of a process.
func statOf(pid int) (procfs.ProcStat, error) {
	p, err := procfs.NewProc(pid)
	if err != nil {
		return procfs.ProcStat{}, err
	}
	return p.Stat()
}

// residentOf is the memory that a process has, in bytes.
func residentOf(pid int) (int64, error) {
	of, err := statOf(pid)
	return int64(of.ResidentMemory()), err
}

// commandsOf is how many commands a Redis has executed.
func commandsOf(addr string) (sum int64, err error) {
	conn, err := net.DialTimeout("tcp", addr, dialTimeout)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "INFO commandstats\r\nQUIT\r\n"); err != nil {
		return 0, err
	}
	lines := bufio.NewScanner(conn)
	for lines.Scan() {
		if _, rest, ok := strings.Cut(lines.Text(), ":calls="); ok {
			digits, _, _ := strings.Cut(rest, ",")
			n, err := strconv.ParseInt(digits, 10, 64)
			if err != nil {
				return 0, err
			}
			sum += n
		}
	}
	return sum, lines.Err()
}

// machine says what is measured on.
func machine(ctx context.Context) []string {
	output := func(name string, args ...string) string {
		text, err := exec.CommandContext(ctx, name, args...).Output()
		if err != nil {
			return name + " of unknown version"
		}
		return strings.TrimSpace(string(text))
	}
	cpu := "a processor of unknown make"
	if system, err := procfs.NewDefaultFS(); err == nil {
		if all, err := system.CPUInfo(); err == nil && len(all) > 0 {
			cpu = all[0].ModelName
		}
	}
	return []string{
		fmt.Sprintf("%s, %d cores, shared by all parties", cpu, runtime.NumCPU()),
		fmt.Sprintf("%s, %s, %s", output("uname", "-sr"), runtime.Version(), output("redis-server", "--version")),
	}
}
