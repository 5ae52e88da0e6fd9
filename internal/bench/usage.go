package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// spare are the file descriptors that a process needs besides those of the parked
// calls.
const spare = 1000

// raiseFiles raises the limit of open files, which the children inherit, to what
// the system allows at most, and returns it.
func raiseFiles() (int, error) {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return 0, err
	}
	limit.Cur = limit.Max
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return 0, err
	}
	return int(min(limit.Cur, 1<<30)), nil
}

// usage is what a process and its store have used so far.
type usage struct {
	resident int64 // bytes
	cpu      time.Duration
	commands map[string]int64 // of Redis
}

// tick is the unit of CPU times in /proc, on every Linux that Go runs on.
const tick = 10 * time.Millisecond

// usageOf reads what a process has used, and the commands of its store.
func (p *parking) usageOf(ctx context.Context, pid int) (u usage, err error) {
	if u.resident, err = residentOf(pid); err != nil {
		return u, err
	}
	if u.cpu, err = cpuOf(pid); err != nil {
		return u, err
	}
	u.commands, err = p.commands(ctx)
	return u, err
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

// commands are the numbers of calls by command. Those that scripts make count too.
func (p *parking) commands(ctx context.Context) (map[string]int64, error) {
	info, err := p.store.Info(ctx, "commandstats").Result()
	if err != nil {
		return nil, err
	}
	found := map[string]int64{}
	for line := range strings.Lines(info) {
		name, rest, ok := strings.Cut(strings.TrimPrefix(line, "cmdstat_"), ":calls=")
		if !ok || name == "info" {
			continue
		}
		digits, _, _ := strings.Cut(rest, ",")
		if found[name], err = strconv.ParseInt(digits, 10, 64); err != nil {
			return nil, err
		}
	}
	return found, nil
}

// since is what was used after another reading.
func (u usage) since(before usage) usage {
	d := usage{resident: u.resident, cpu: u.cpu - before.cpu, commands: map[string]int64{}}
	for name, n := range u.commands {
		if n -= before.commands[name]; n > 0 {
			d.commands[name] = n
		}
	}
	return d
}

// list spells the commands.
func (u usage) list() string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(u.commands)) {
		parts = append(parts, fmt.Sprintf("%s %d", name, u.commands[name]))
	}
	return strings.Join(parts, ", ")
}
