package budget

import (
	"errors"
	"io"
)

// ErrTooLarge says that there was more to read than may be.
var ErrTooLarge = errors.New("budget: more bytes than the limit")

// ReadAll reads all of r. Before it makes room for bytes it takes as many. length is how much
// there is, if that is known, and -1 if not: then the buffer grows. More than limit bytes are
// ErrTooLarge; the other errors are those of r and of take.
func ReadAll(r io.Reader, length, limit int64, take func(n int64) error) ([]byte, error) {
	if length > limit {
		return nil, ErrTooLarge
	}
	size := length + 1 // with room to see the end
	if length < 0 {
		size = min(Free, limit+1)
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
		more := min(2*size, limit+1)
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
