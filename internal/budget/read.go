package budget

import (
	"errors"
	"io"
)

// ErrTooLarge says that there was more to read than may be.
var ErrTooLarge = errors.New("budget: more bytes than the limit")

// firstRead is the size of the first buffer, in bytes, where a peer that is not believed has
// announced more. The buffer grows to four times its size when it is full.
const firstRead = 64 << 10

// ReadAll reads all of r. Before it makes room for bytes it takes as many. length is how much
// is announced, and -1 if that is unknown. An announcement that is believed takes all at once;
// else the buffer grows with what has come. More than limit bytes are
// ErrTooLarge; the other errors are those of r and of take.
func ReadAll(r io.Reader, length int64, believed bool, limit int64, take func(n int64) error) ([]byte, error) {
	if length > limit {
		return nil, ErrTooLarge
	}
	most := limit + 1 // with room to see the end
	size, growth := min(Free, most), int64(2)
	switch {
	case length >= 0 && believed:
		most, size = length+1, length+1
	case length >= 0:
		most, size, growth = length+1, min(firstRead, length+1), 4
	}
	if size > Free {
		if err := take(size); err != nil {
			return nil, err
		}
	}
	buf := make([]byte, 0, size)
	for {
		n, err := r.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		switch {
		case int64(len(buf)) > limit:
			return nil, ErrTooLarge
		case err == io.EOF:
			return buf, nil
		case err != nil:
			return nil, err
		case len(buf) < cap(buf):
			continue
		}
		if size == most { // more has come than was announced
			most = limit + 1
		}
		more := min(growth*size, most)
		if err := take(more - counted(size)); err != nil {
			return nil, err
		}
		buf, size = append(make([]byte, 0, more), buf...), more
	}
}

// counted is how much of a buffer of that size is held.
func counted(size int64) int64 {
	if size <= Free {
		return 0
	}
	return size
}
