package journal

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"slices"
	"strconv"
	"strings"
)

// segment is one file. It continues the file before it.
type segment struct {
	number int
	file   File
	salt   []byte
	size   int64 // up to the end of the last whole record
	marked int64 // up to the end of the record that ended a rewrite; 0 if there is none
	buffer []byte
}

// prefix begins the name of each file; its number follows.
const prefix = "journal-"

func (s *segment) name() string { return prefix + strconv.Itoa(s.number) }

// errDamaged says that a file differs from what was written.
var errDamaged = errors.New("damaged")

func damagedError(path, why string) error {
	return fmt.Errorf("%s is %w: %s; restore the folder from a copy, or move it away to begin with an empty store", path, errDamaged, why)
}

// create makes a file with its header.
func (j *Journal) create(number int) (*segment, error) {
	header := newHeader()
	salt, err := parseHeader(header)
	if err != nil {
		return nil, err
	}
	s := &segment{number: number, salt: salt, size: int64(headerSize)}
	if s.file, err = j.dir.Open(s.name(), true); err != nil {
		return nil, err
	}
	_, err = s.file.WriteAt(header, 0)
	if err == nil {
		err = s.file.Sync()
	}
	if err == nil {
		err = j.dir.Sync()
	}
	if err != nil {
		return nil, errors.Join(err, s.file.Close(), j.dir.Remove(s.name()))
	}
	return s, nil
}

// append writes a record and syncs it. A repeat after a failure writes it once more, because a failed sync
// may leave wrong data in memory.
func (s *segment) append(payload []byte) error {
	s.buffer = appendRecord(s.buffer[:0], s.salt, payload)
	if size, err := s.file.Size(); err != nil {
		return err
	} else if size != s.size {
		if err := s.file.Truncate(s.size); err != nil {
			return err
		}
	}
	if _, err := s.file.WriteAt(s.buffer, s.size); err != nil {
		return err
	}
	if err := s.file.Sync(); err != nil {
		return err
	}
	s.size += int64(len(s.buffer))
	if cap(s.buffer) > 4<<20 {
		s.buffer = nil
	}
	return nil
}

// load reads all files, and makes the first one in an empty folder.
func (j *Journal) load(replay Replay) error {
	numbers, err := j.numbers()
	if err != nil {
		return err
	}
	torn := ""
	for _, n := range numbers {
		s := &segment{number: n}
		if s.file, err = j.dir.Open(s.name(), false); err != nil {
			return err
		}
		j.segments = append(j.segments, s)
		whole, err := s.read(replay)
		switch {
		case errors.Is(err, errNewer):
			return fmt.Errorf("%s/%s is %w", j.path, s.name(), err)
		case err != nil:
			return damagedError(j.path+"/"+s.name(), err.Error())
		}
		if torn != "" && s.records() {
			return damagedError(j.path+"/"+torn, "its end is missing")
		}
		if !whole {
			torn = s.name()
			j.log.Warn("the file ends inside a write, which is left out: after a crash nobody was told of it; if the file was cut otherwise, what came behind is lost", "file", j.path+"/"+torn)
		}
	}
	return j.tidy()
}

// Place is where an entry lies in the files.
type Place struct {
	segment *segment
	from    int64
	size    int
}

// Read reads the entry once more. ErrGone says that its file went at the start: a rewrite had left the entry out.
func (p Place) Read() ([]byte, error) {
	entry := make([]byte, p.size)
	_, err := p.segment.file.ReadAt(entry, p.from)
	if errors.Is(err, fs.ErrClosed) {
		err = ErrGone
	}
	return entry, err
}

// ErrGone is the error of Read of a place in a file that is gone.
var ErrGone = errors.New("the entry is gone")

// numbers lists the files by their numbers.
func (j *Journal) numbers() (numbers []int, err error) {
	names, err := j.dir.Names()
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		rest, is := strings.CutPrefix(name, prefix)
		if n, err := strconv.Atoi(rest); is && err == nil {
			numbers = append(numbers, n)
		}
	}
	slices.Sort(numbers)
	return numbers, nil
}

// records reports whether anything was written behind the header.
func (s *segment) records() bool { return s.size > int64(headerSize) }

// tidy keeps the files that count, ready for writing.
func (j *Journal) tidy() error {
	last := 0
	for len(j.segments) > 0 && j.current().size == 0 { // the process died before it wrote the header
		s := j.current()
		last = s.number
		if err := errors.Join(s.file.Close(), j.dir.Remove(s.name())); err != nil {
			return err
		}
		j.segments = j.segments[:len(j.segments)-1]
	}
	if len(j.segments) == 0 {
		if last > 1 {
			return damagedError(j.path, fmt.Sprintf("%s%d has nothing in it", prefix, last))
		}
		s, err := j.create(1)
		if err != nil {
			return err
		}
		j.segments = []*segment{s}
		return nil
	}
	first := 0
	for i, s := range j.segments {
		if s.marked > 0 {
			first = i
			j.base = s.marked
		}
	}
	want := j.segments[first].number
	if j.base == 0 {
		want = 1
	}
	for _, s := range j.segments[first:] {
		if s.number != want {
			return damagedError(j.path, fmt.Sprintf("%s%d is missing", prefix, want))
		}
		want++
	}
	for _, s := range j.segments[:first] {
		if err := errors.Join(s.file.Close(), j.dir.Remove(s.name())); err != nil {
			return err
		}
	}
	j.segments = j.segments[first:]
	for _, s := range j.segments {
		if err := s.settle(); err != nil {
			return err
		}
	}
	return j.dir.Sync()
}

// settle syncs what was read, because a process that was killed may have left it unsynced. It removes the
// rest behind the last whole record: in front of records in a next file it would look like damage.
func (s *segment) settle() error {
	size, err := s.file.Size()
	if err == nil && size != s.size {
		err = s.file.Truncate(s.size)
	}
	if err != nil {
		return err
	}
	return s.file.Sync()
}

// read calls replay for each entry. whole is false if the end was cut short, as by a crash during a write
// that was still unacknowledged.
func (s *segment) read(replay Replay) (whole bool, err error) {
	size, err := s.file.Size()
	if err != nil {
		return false, err
	}
	header := make([]byte, min(size, int64(headerSize)))
	if _, err := s.file.ReadAt(header, 0); err != nil && err != io.EOF {
		return false, err
	}
	s.salt, err = parseHeader(header)
	switch {
	case errors.Is(err, errHeader) && size <= int64(headerSize): // the process died while it made the file
		return false, nil
	case err != nil:
		return false, err
	}
	s.size = int64(headerSize)
	in := bufio.NewReaderSize(io.NewSectionReader(s.file, s.size, math.MaxInt64-s.size), 1<<20)
	var record []byte
	for s.size < size {
		record, err = readRecord(in, record, size-s.size)
		if err != nil {
			return false, err
		}
		payload, ok := firstRecord(record, s.salt)
		if !ok {
			return false, s.torn(size)
		}
		for rest := payload; len(rest) > 0; {
			entry, after, ok := cutEntry(rest)
			if !ok {
				return false, fmt.Errorf("an entry of the record at byte %d does not end", s.size)
			}
			at := Place{segment: s, from: s.size + int64(len(record)-len(after)-len(entry)), size: len(entry)}
			if err := replay(entry, at); err != nil {
				return false, fmt.Errorf("an entry of the record at byte %d: %w", s.size, err)
			}
			rest = after
		}
		s.size += int64(len(record))
		if len(payload) == 0 {
			s.marked = s.size
		}
	}
	return true, nil
}

// readRecord reads as many bytes as the next record claims to have, or as are left.
func readRecord(in io.Reader, into []byte, left int64) ([]byte, error) {
	into = slices.Grow(into[:0], recordSize)[:min(recordSize, left)]
	if _, err := io.ReadFull(in, into); err != nil {
		return nil, err
	}
	if len(into) < recordSize {
		return into, nil
	}
	n := min(int64(binary.BigEndian.Uint32(into[4:])), left-recordSize)
	into = slices.Grow(into, int(n))[:recordSize+n]
	_, err := io.ReadFull(in, into[recordSize:])
	return into, err
}

// torn checks the bytes behind the last whole record. It returns an error unless they are the rest of one
// write.
func (s *segment) torn(size int64) error {
	rest := make([]byte, size-s.size)
	if _, err := s.file.ReadAt(rest, s.size); err != nil {
		return err
	}
	if holdsRecord(rest, s.salt) {
		return fmt.Errorf("the record at byte %d is not as it was written", s.size)
	}
	return nil
}
