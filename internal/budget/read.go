package budget

import (
	"errors"
	"io"
)

// ErrTooLarge says that r had more bytes than the limit.
var ErrTooLarge = errors.New("budget: more bytes than the limit")

// firstRead is the size of the first buffer, in bytes, if a peer that is not believed has announced
// more. A full buffer grows to four times its size.
const firstRead = 64 << 10

// ReadAll reads all of r. Before the buffer grows, it takes as many bytes. length is the announced
// length, or -1 if unknown. A believed announcement takes all bytes at once; otherwise the buffer
// grows with the bytes that come. If there are more than limit bytes, the error is ErrTooLarge;
// other errors are those of r and of take.
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
	held := int64(0)
	if size > Free {
		if err := take(size); err != nil {
			return nil, err
		}
		held = size
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
		if size == most { // more bytes came than were announced
			most = limit + 1
		}
		more := min(growth*size, most)
		if err := take(more - held); err != nil {
			return nil, err
		}
		buf, size, held = append(make([]byte, 0, more), buf...), more, more
	}
}
