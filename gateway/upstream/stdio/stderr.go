package stdio

import (
	"bufio"
	"bytes"
	"log/slog"
	"os"
	"strings"
	"sync"
	"unicode"

	"taskgate/internal/sparing"
)

// How much of a server's standard error is kept and logged. All of it is read.
const (
	keptErrors = 4 << 10 // bytes
	errorLine  = 1 << 10 // bytes of one line
)

// stderr reads a server's standard error, whose text it only keeps and logs.
type stderr struct {
	log  *slog.Logger
	done chan struct{} // closed at the end of the output

	lines sparing.Lines // that are logged

	mu   sync.Mutex
	tail []byte
}

// read logs and keeps lines until the output ends.
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
			s.tell(s.lines.Left(true))
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
	left, pass := s.lines.Pass()
	s.tell(left)
	if pass {
		s.log.Info("the server wrote to its standard error", "line", line)
	}
}

// tell logs how many lines were left out.
func (s *stderr) tell(left int) {
	if left > 0 {
		s.log.Warn("lines of the server's standard error were not logged", "lines", left)
	}
}

// last returns the end of the output.
func (s *stderr) last() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.TrimSpace(string(s.tail))
}

// printable replaces the characters of a line that control a terminal.
func printable(line []byte) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, string(line))
}
