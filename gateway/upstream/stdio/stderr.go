package stdio

import (
	"bufio"
	"bytes"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"
	"unicode"
)

// What of a server's standard error is kept and logged. All of it is read.
const (
	keptErrors = 4 << 10 // bytes
	errorLine  = 1 << 10 // bytes of one line
	logLines   = 100     // lines in each logInterval
	// logInterval is how long it takes until as many lines are logged again.
	logInterval = 10 * time.Second
)

// stderr reads what a server says on its standard error: text that is never understood.
type stderr struct {
	log  *slog.Logger
	done chan struct{} // closed when there is no more

	since   time.Time // of the present interval
	lines   int       // logged in it
	skipped int       // not logged in it

	mu   sync.Mutex
	tail []byte
}

// read logs and keeps lines until there are no more.
func (s *stderr) read(f *os.File) {
	defer close(s.done)
	defer f.Close()
	r := bufio.NewReaderSize(f, errorLine)
	cut := false // the line goes on
	for {
		line, err := r.ReadSlice('\n')
		text := bytes.TrimRight(line, "\r\n")
		if !cut && len(text) > 0 {
			s.note(printable(text))
		}
		cut = err == bufio.ErrBufferFull
		if err != nil && !cut {
			s.tell()
			return
		}
	}
}

// note keeps and logs a line.
func (s *stderr) note(line string) {
	s.mu.Lock()
	s.tail = append(append(s.tail, line...), '\n')
	if extra := len(s.tail) - keptErrors; extra > 0 {
		s.tail = append(s.tail[:0], s.tail[extra:]...)
	}
	s.mu.Unlock()
	if now := time.Now(); now.Sub(s.since) >= logInterval {
		s.tell()
		s.since, s.lines, s.skipped = now, 0, 0
	}
	if s.lines++; s.lines > logLines {
		s.skipped++
		return
	}
	s.log.Info("the server wrote to its standard error", "line", line)
}

// tell logs how much was left out.
func (s *stderr) tell() {
	if s.skipped > 0 {
		s.log.Warn("lines of the server's standard error were not logged", "lines", s.skipped)
	}
}

// last is the end of what was said.
func (s *stderr) last() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.TrimSpace(string(s.tail))
}

// printable is a line without what controls a terminal.
func printable(line []byte) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, string(line))
}
