package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
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
	pid := st.gatewayProcess.PID()
	if u.resident, err = residentOf(pid); err != nil {
		return u, err
	}
	if u.cpu, err = cpuOf(pid); err != nil {
		return u, err
	}
	u.commands, err = commandsOf(st.redis)
	return u, err
}

// since is what was used after another reading.
func (u usage) since(before usage) usage {
	return usage{resident: u.resident, cpu: u.cpu - before.cpu, commands: u.commands - before.commands}
}

// residentOf is the memory that a process has, in bytes.
func residentOf(pid int) (int64, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	kilobytes, _, _ := strings.Cut(field(string(status), "VmRSS:"), " ")
	n, err := strconv.ParseInt(kilobytes, 10, 64)
	return n << 10, err
}

// tick is the unit of CPU times in /proc, on every Linux that Go runs on.
const tick = 10 * time.Millisecond

// cpuOf is the CPU time that a process has used.
func cpuOf(pid int) (time.Duration, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	// The name of the program, in parentheses, may contain anything.
	_, after, _ := strings.Cut(string(stat), ") ")
	fields := strings.Fields(after)
	if len(fields) < 13 {
		return 0, errors.New("/proc/PID/stat is shorter than expected")
	}
	user, err := strconv.ParseInt(fields[11], 10, 64)
	if err != nil {
		return 0, err
	}
	system, err := strconv.ParseInt(fields[12], 10, 64)
	return time.Duration(user+system) * tick, err
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
	if info, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		cpu = strings.TrimLeft(field(string(info), "model name"), "\t: ")
	}
	return []string{
		fmt.Sprintf("%s, %d cores, shared by all parties", cpu, runtime.NumCPU()),
		fmt.Sprintf("%s, %s, %s", output("uname", "-sr"), runtime.Version(), output("redis-server", "--version")),
	}
}

// field is the rest of the first line that begins with the name.
func field(text, name string) string {
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, name); ok {
			return strings.TrimSpace(rest)
		}
	}
	return "unknown"
}
