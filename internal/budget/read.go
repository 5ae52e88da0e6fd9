package budget

import (
	"bytes"
	"errors"
	"io"

	"taskgate/internal/pool"
)

// ErrTooLarge says that r had more bytes than the limit.
var ErrTooLarge = errors.New("budget: more bytes than the limit")

// blockSize is how many bytes are read at a time, if nobody knows how many come or the peer that has announced them is
// not believed.
const blockSize = 64 << 10

// blocks are what such bytes are read into. They are lent until the end of the reading: its result is a copy.
var blocks = pool.New("blocks of messages", func() *[blockSize]byte { return new([blockSize]byte) })

// ReadAll reads all of r. It takes as many bytes as the buffers that it reads into have. length is the announced length,
// or -1 if unknown. A believed announcement takes all bytes at once; otherwise the buffers follow the bytes that come.
// If there are more than limit bytes, the error is ErrTooLarge; other errors are those of r and of take.
func ReadAll(r io.Reader, length int64, believed bool, limit int64, take func(n int64) error) ([]byte, error) {
	return readAll(r, length, believed, limit, take, func(int64) []byte { return nil })
}

// ReadLent is ReadAll of a believed announcement. If the hold lends, and the text is large, the text is in a buffer that is
// lent to the caller, which owns it from then on; it is nil otherwise, and with an error. What such a buffer has more than the
// text needs, a fifth at most, is not taken.
func ReadLent(h *Hold, r io.Reader, length, limit int64, take func(n int64) error) (text []byte, lent *pool.Buffer, err error) {
	if length >= 0 && length < pool.Smallest || !h.isLending() {
		text, err = ReadAll(r, length, true, limit, take)
		return text, nil, err
	}
	text, err = readAll(r, length, true, limit, take, func(size int64) []byte {
		if lent == nil { // else more has come than was announced
			if lent = pool.Borrow(size); lent != nil {
				return lent.Room()[:0:size]
			}
		}
		return nil
	})
	if err != nil {
		lent.Return()
		return nil, nil, err
	}
	return text, lent, nil
}

// readAll is ReadAll into an empty buffer of the lender, which it asks if the length is believed, or else once all is
// there. The lender may have none.
func readAll(r io.Reader, length int64, believed bool, limit int64, take func(n int64) error, lend func(size int64) []byte) ([]byte, error) {
	if length > limit {
		return nil, ErrTooLarge
	}
	first, whole := min(Free, limit+1), length >= 0 && believed // with room to see the end
	switch {
	case whole:
		first = length + 1
	case length >= 0:
		first = min(blockSize, length+1)
	}
	if first > Free {
		if err := take(first); err != nil {
			return nil, err
		}
	}
	var buf []byte
	if whole {
		buf = lend(first)
	}
	if buf == nil {
		buf = make([]byte, 0, first)
	}
	buf, err := fillBuffer(r, buf)
	size := int64(len(buf))
	all := [][]byte{buf}
	var lent []*[blockSize]byte
	defer func() {
		for _, b := range lent {
			blocks.Put(b)
		}
	}()
	for err == nil && size <= limit { // the buffer is full
		more := min(blockSize, limit+1-size)
		if err := take(more); err != nil {
			return nil, err
		}
		lent = append(lent, blocks.Get())
		var part []byte
		part, err = fillBuffer(r, lent[len(lent)-1][:0:more])
		all, size = append(all, part), size+int64(len(part))
	}
	switch {
	case size > limit:
		return nil, ErrTooLarge
	case err != io.EOF:
		return nil, err
	case len(all) == 1:
		return buf, nil
	}
	text := lend(size)
	if text == nil {
		return bytes.Join(all, nil), nil
	}
	for _, part := range all {
		text = append(text, part...)
	}
	return text, nil
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
