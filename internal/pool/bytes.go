package pool

import (
	"fmt"
	"math/bits"
	"sync/atomic"
)

const (
	// Smallest is the size in bytes of the smallest buffer that is lent: less costs little.
	Smallest = 64 << 10
	// steps are the classes from a size to its double: at most a fifth of a buffer is unused.
	steps   = 4
	octaves = 8 // up to 14 MiB
)

// Buffer is room for a large message. Whoever borrows it owns it (see the package comment).
type Buffer struct {
	room []byte
	from *Pool[Buffer]
}

// classes have the free buffers, by size.
var classes = func() (all [octaves * steps]*Pool[Buffer]) {
	for i := range all {
		size := sizeOf(i)
		all[i] = New(fmt.Sprintf("buffers of %d KiB", size>>10), func() *Buffer { return &Buffer{make([]byte, size), all[i]} })
	}
	return all
}()

func sizeOf(class int) int64 { return Smallest / steps << (class / steps) * int64(steps+class%steps) }

// classOf is that of the smallest buffers with room for size bytes, which are more than the smallest buffer has.
func classOf(size int64) int {
	octave := bits.Len64(uint64(size-1)) - bits.Len64(Smallest)
	step := int64(Smallest / steps << octave)
	return (octave-1)*steps + int((size+step-1)/step)
}

// Borrow returns a buffer with room for size bytes; nil if none of that size is lent.
func Borrow(size int64) *Buffer {
	if size <= Smallest || size > sizeOf(len(classes)-1) {
		return nil
	}
	return classes[classOf(size)].Get()
}

// Room is the buffer's, with what was last in it.
func (b *Buffer) Room() []byte { return b.room }

// overwrites says that what is put back is overwritten.
var overwrites atomic.Bool

// OverwriteReturned is for tests: from now on, whoever reads a buffer that was put back reads no message. Programs that
// tests build do so too (mode).
func OverwriteReturned() { overwrites.Store(true) }

// mode is "overwrite" in programs that tests build, by the linker.
var mode string

func init() { overwrites.Store(mode == "overwrite") }

// Return puts the buffer back. A nil Buffer was not lent.
func (b *Buffer) Return() {
	if b == nil {
		return
	}
	if overwrites.Load() {
		for i := range b.room {
			b.room[i] = '!'
		}
	}
	b.from.Put(b)
}

// Abandon leaves the buffer to whoever may still read it. It is not lent again.
func (b *Buffer) Abandon() {
	if b != nil {
		b.from.lent.Add(-1)
	}
}
