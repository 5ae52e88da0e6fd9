package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// processesOf are a process and all that it has started, but for trial servers: those are no part of a peer.
func processesOf(pid int) []int {
	if exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid)); err == nil && filepath.Base(exe) == "trialserver" {
		return nil
	}
	all := []int{pid}
	lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, list := range lists {
		text, _ := os.ReadFile(list)
		for _, child := range strings.Fields(string(text)) {
			if n, err := strconv.Atoi(child); err == nil {
				all = append(all, processesOf(n)...)
			}
		}
	}
	return all
}

// tick is the unit of times in /proc.
const tick = 10 * time.Millisecond

// cpuOf is the processor time of a peer so far.
func cpuOf(pid int) (total time.Duration) {
	for _, p := range processesOf(pid) {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p))
		if err != nil {
			continue // it has ended
		}
		fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
		for _, f := range fields[11:13] { // utime and stime
			n, _ := strconv.ParseInt(f, 10, 64)
			total += time.Duration(n) * tick
		}
	}
	return total
}

// memoryOf is the memory of a peer in bytes: its share of each page (PSS).
func memoryOf(pid int) (total float64) {
	for _, p := range processesOf(pid) {
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", p))
		for line := range strings.Lines(string(text)) {
			if rest, ok := strings.CutPrefix(line, "Pss:"); ok {
				n, _ := strconv.ParseFloat(strings.Fields(rest)[0], 64)
				total += n * 1024
			}
		}
	}
	return total
}
