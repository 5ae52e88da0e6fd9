package budget

import (
	"bytes"
	"errors"
	"io"
	"sync"
)

// ErrTooLarge says that r had more bytes than the limit.
var ErrTooLarge = errors.New("budget: more bytes than the limit")

// blockSize is how many bytes are read at a time, if nobody knows how many come or the peer that has announced them is
// not believed.
const blockSize = 64 << 10

// blocks are what such bytes are read into. ReadAll has them until it returns: its result is a copy.
var blocks = sync.Pool{New: func() any { return new([blockSize]byte) }}

// ReadAll reads all of r. It takes as many bytes as the buffers that it reads into have. length is the announced length,
// or -1 if unknown. A believed announcement takes all bytes at once; otherwise the buffers follow the bytes that come.
// If there are more than limit bytes, the error is ErrTooLarge; other errors are those of r and of take.
func ReadAll(r io.Reader, length int64, believed bool, limit int64, take func(n int64) error) ([]byte, error) {
	if length > limit {
		return nil, ErrTooLarge
	}
	first := min(Free, limit+1) // with room to see the end
	switch {
	case length >= 0 && believed:
		first = length + 1
	case length >= 0:
		first = min(blockSize, length+1)
	}
	if first > Free {
		if err := take(first); err != nil {
			return nil, err
		}
	}
	buf, err := fillBuffer(r, make([]byte, 0, first))
	size := int64(len(buf))
	all := [][]byte{buf}
	var lent []*[blockSize]byte
	defer func() {
		for _, b := range lent {
			blocks.Put(b)
		}
	}()
	for err == nil && size <= limit { // the buffer is full
		room := min(blockSize, limit+1-size)
		if err := take(room); err != nil {
			return nil, err
		}
		lent = append(lent, blocks.Get().(*[blockSize]byte))
		var more []byte
		more, err = fillBuffer(r, lent[len(lent)-1][:0:room])
		all, size = append(all, more), size+int64(len(more))
	}
	switch {
	case size > limit:
		return nil, ErrTooLarge
	case err != io.EOF:
		return nil, err
	case len(all) == 1:
		return buf, nil
	}
	return bytes.Join(all, nil), nil
}

// fillBuffer reads until the buffer is full, or an error, which io.EOF is, too.
func fillBuffer(r io.Reader, b []byte) ([]byte, error) {
	for len(b) < cap(b) {
		n, err := r.Read(b[len(b):cap(b)])
		if b = b[:len(b)+n]; err != nil {
			return b, err
		}
	}
	return b, nil
}
