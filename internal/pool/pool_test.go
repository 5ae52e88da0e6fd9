package pool

import (
	"bytes"
	"maps"
	"testing"
)

// The smallest buffer with enough room is lent, and says so until it is back.
func TestBorrow(t *testing.T) {
	if Borrow(Smallest) != nil || Borrow(sizeOf(len(classes)-1)+1) != nil {
		t.Error("a buffer is lent that none needs")
	}
	for class := range classes {
		for _, size := range []int64{sizeOf(class) - 1, sizeOf(class)} {
			if b := Borrow(size); size > Smallest && (int64(len(b.Room())) != sizeOf(class)) {
				t.Errorf("%d bytes get %d", size, len(b.Room()))
			} else {
				b.Return()
			}
		}
		if b := Borrow(sizeOf(class) + 1); b != nil {
			if int64(len(b.Room())) != sizeOf(class+1) || sizeOf(class+1) > sizeOf(class)*5/4 {
				t.Errorf("%d bytes get %d", sizeOf(class)+1, len(b.Room()))
			}
			b.Return()
		}
	}
	a, b := Borrow(100<<10), Borrow(100<<10)
	if want := (map[string]int64{"buffers of 112 KiB": 2}); !maps.Equal(Lent(), want) {
		t.Errorf("%v are lent, want %v", Lent(), want)
	}
	a.Return()
	b.Abandon()
	if len(Lent()) > 0 {
		t.Errorf("%v are lent", Lent())
	}
}

// A test reads nothing of a buffer that was put back.
func TestOverwriteReturned(t *testing.T) {
	was := overwrites.Load()
	defer overwrites.Store(was)
	OverwriteReturned()
	b := Borrow(100 << 10)
	room := b.Room()
	copy(room, "mine")
	b.Return()
	if bytes.ContainsAny(room, "mine\x00") {
		t.Errorf("it has %q", room[:10])
	}
}
