package budget

import (
	"bytes"
	"context"
	"errors"
	"io"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"taskgate/internal/pool"
)

func TestMain(m *testing.M) {
	pool.OverwriteReturned()
	m.Run()
}

const wait = time.Minute

// take begins to take n bytes. The channel has how it ended.
func take(ctx context.Context, h *Hold, n int64) <-chan error {
	done := make(chan error, 1)
	go func() { done <- h.Take(ctx, n) }()
	synctest.Wait()
	return done
}

// expect checks how a Take has ended, or that it waits still.
func expect(t *testing.T, what string, done <-chan error, want error, waits bool) {
	t.Helper()
	synctest.Wait()
	select {
	case err := <-done:
		if waits || !errors.Is(err, want) {
			t.Errorf("%s: %v", what, err)
		}
	default:
		if !waits {
			t.Errorf("%s waits", what)
		}
	}
}

func (b *Bytes) expectHeld(t *testing.T, want int64) {
	t.Helper()
	if got := b.Held(); got != want {
		t.Errorf("%d bytes are held, want %d", got, want)
	}
}

// TestWaits: who needs more than there is waits for it, in order, and gets it when others
// give theirs back.
func TestWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New(100, 20, wait)
		first, second, third := b.Hold(), b.Hold(), b.Hold()
		expect(t, "the first", take(t.Context(), first, 70), nil, false)
		expect(t, "what is set aside", take(t.Context(), second, 20), nil, false)
		large := take(t.Context(), third, 15)
		small := take(t.Context(), b.Hold(), 1)
		expect(t, "the third", large, nil, true)
		expect(t, "one behind it, for which there is room,", small, nil, true)
		b.expectHeld(t, 90)
		first.Release()
		expect(t, "the third", large, nil, false)
		expect(t, "one behind it", small, nil, false)
		b.expectHeld(t, 36)
		second.Release()
		third.Give(10)
		b.expectHeld(t, 6)
		third.Release()
		b.expectHeld(t, 1)
	})
}

// TestSmallWishes: a large wish that waits holds back other large ones, and no small one.
func TestSmallWishes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New(100_000, 20_000, wait)
		first, second := b.Hold(), b.Hold()
		expect(t, "the first", take(t.Context(), first, 70_000), nil, false)
		expect(t, "what is set aside", take(t.Context(), second, 20_000), nil, false)
		large := take(t.Context(), b.Hold(), 15_000)
		expect(t, "a small one behind a large one", take(t.Context(), b.Hold(), 100), nil, false)
		middle := take(t.Context(), b.Hold(), 101)
		expect(t, "the large one", large, nil, true)
		expect(t, "one that is not small", middle, nil, true)
		second.Release()
		expect(t, "the large one", large, nil, false)
		expect(t, "one that is not small", middle, nil, false)
	})
}

// TestAnnouncedLength: a peer that announces much and sends little holds little.
func TestAnnouncedLength(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New(100<<20, 10<<20, wait)
		h := b.Hold()
		r, w := io.Pipe()
		done := make(chan error, 1)
		go func() {
			_, err := ReadAll(r, 8<<20, false, 8<<20, func(n int64) error { return h.Take(t.Context(), n) })
			done <- err
		}()
		_, _ = w.Write([]byte("x"))
		synctest.Wait()
		b.expectHeld(t, 64<<10)
		_, _ = w.Write(make([]byte, 1<<20))
		synctest.Wait()
		b.expectHeld(t, 1<<20+64<<10)
		_ = w.CloseWithError(io.ErrUnexpectedEOF)
		if err := <-done; !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Error(err)
		}
	})
}

// TestHoldersThatNeedMore: where all the bytes are held by those who need more, one after
// the other gets it.
func TestHoldersThatNeedMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New(100, 50, wait)
		var holds []*Hold
		var more []<-chan error
		for range 5 {
			h := b.Hold()
			expect(t, "a part", take(t.Context(), h, 10), nil, false)
			holds = append(holds, h)
		}
		for _, h := range holds {
			more = append(more, take(t.Context(), h, 40))
		}
		for i, h := range holds {
			expect(t, "the next", more[i], nil, false)
			if b.Held() > 100 {
				t.Errorf("%d bytes are held", b.Held())
			}
			h.Release()
		}
		b.expectHeld(t, 0)
	})
}

// TestSharedHold: what one request does at once cannot wait for itself.
func TestSharedHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New(100, 50, wait)
		other, batch := b.Hold(), b.Hold()
		expect(t, "another", take(t.Context(), other, 50), nil, false)
		expect(t, "one of the batch", take(t.Context(), batch, 20), nil, false)
		stranger := take(t.Context(), b.Hold(), 10)
		expect(t, "a stranger", stranger, nil, true)
		expect(t, "another of the batch", take(t.Context(), batch, 20), nil, false)
		expect(t, "too much of the batch", take(t.Context(), batch, 20), ErrFull, false)
		kept := batch.Share()
		batch.Release()
		b.expectHeld(t, 90)
		kept.Release()
		expect(t, "a stranger", stranger, nil, false)
		b.expectHeld(t, 60)
		if err := kept.Take(t.Context(), 10); err != nil {
			t.Error(err)
		}
		b.expectHeld(t, 60) // nobody would give back what a released hold takes
	})
}

// TestLongLife: who has what was set aside, and needs little of it by now, lets others have it.
func TestLongLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New(100, 50, wait)
		expect(t, "others", take(t.Context(), b.Hold(), 45), nil, false)
		long := b.Hold()
		expect(t, "one of a long life", take(t.Context(), long, 50), nil, false)
		next := take(t.Context(), b.Hold(), 50)
		expect(t, "the next", next, nil, true)
		long.Give(46)
		expect(t, "the next", next, nil, false)
	})
}

// TestGivesUp: a wait ends with its context and with its time, and leaves nothing behind.
func TestGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New(100, 50, wait)
		full, aside := b.Hold(), b.Hold()
		expect(t, "all", take(t.Context(), full, 50), nil, false)
		expect(t, "all", take(t.Context(), aside, 50), nil, false)
		ctx, leave := context.WithCancelCause(t.Context())
		left := take(ctx, b.Hold(), 10)
		stays := take(t.Context(), b.Hold(), 20)
		gone := errors.New("gone")
		leave(gone)
		expect(t, "who left", left, gone, false)
		begin := time.Now()
		if err := <-stays; !errors.Is(err, ErrFull) || time.Since(begin) != wait {
			t.Errorf("%v after %v", err, time.Since(begin))
		}
		if b.Waiting() != 0 {
			t.Errorf("%d wait", b.Waiting())
		}
		full.Release()
		aside.Release()
		b.expectHeld(t, 0)
	})
}

// TestNobody: without a budget nothing is counted.
func TestNobody(t *testing.T) {
	var b *Bytes
	h := b.Hold()
	if err := h.Share().Take(t.Context(), 1<<40); err != nil || b.Held() != 0 || b.Waiting() != 0 {
		t.Error(err)
	}
	h.Give(1)
	h.Release()
	if h := From(With(t.Context(), h)); h != nil {
		t.Error(h)
	}
}

// TestUnderLoad: many holds that grow, shrink and leave never have more than the size, and
// all come to an end.
func TestUnderLoad(t *testing.T) {
	b := New(1000, 200, wait)
	var all sync.WaitGroup
	for i := range 200 {
		all.Go(func() {
			h := b.Hold()
			defer h.Release()
			for step := range 4 {
				if err := h.Take(t.Context(), int64(10+i%40)); err != nil {
					t.Error(err)
				}
				if held := b.Held(); held > 1000 {
					t.Errorf("%d bytes are held", held)
				}
				if step == 1 {
					h.Give(5)
				}
			}
		})
	}
	all.Wait()
	b.expectHeld(t, 0)
}

// TestReadAll: what is read is held, whether its length was known or not.
func TestReadAll(t *testing.T) {
	text := []byte(strings.Repeat("x", 100<<10))
	for _, c := range []struct {
		name          string
		length, limit int64
		held          int64
		err           error
	}{
		{"known", 100 << 10, 1 << 20, 100<<10 + 1, nil},
		{"unknown", -1, 1 << 20, 128 << 10, nil},
		{"just the limit", -1, 100 << 10, 96<<10 + 1, nil}, // the first 4 KiB are free
		{"too large", -1, 100<<10 - 1, 0, ErrTooLarge},
		{"said to be too large", 100 << 10, 100<<10 - 1, 0, ErrTooLarge},
		{"no room", 100 << 10, 1 << 20, 0, ErrFull},
		{"no room in the end", -1, 1 << 20, 0, ErrFull},
	} {
		size := int64(1 << 20)
		if c.err == ErrFull {
			size = 90 << 10
		}
		b := New(size, size/2, wait)
		h := b.Hold()
		got, err := ReadAll(iotest.HalfReader(bytes.NewReader(text)), c.length, true, c.limit, func(n int64) error { return h.Take(t.Context(), n) })
		if !errors.Is(err, c.err) || err == nil && !bytes.Equal(got, text) {
			t.Errorf("%s: %d bytes, %v", c.name, len(got), err)
		}
		if c.err == nil {
			b.expectHeld(t, c.held)
		}
		h.Release()
		b.expectHeld(t, 0)
	}
	if _, err := ReadAll(iotest.ErrReader(io.ErrUnexpectedEOF), -1, true, 10, nil); err != io.ErrUnexpectedEOF {
		t.Error(err)
	}
}

// A text of unknown length costs its own size and little more, and is its reader's alone: what it was read into serves
// the next one.
func TestReadAllSharesItsBuffers(t *testing.T) {
	const size, texts = 1 << 20, 20
	free := func(int64) error { return nil }
	read := func(fill byte) []byte {
		got, err := ReadAll(iotest.HalfReader(bytes.NewReader(bytes.Repeat([]byte{fill}, size))), -1, true, 2*size, free)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	first := read('a')
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range texts {
		read('b')
	}
	runtime.ReadMemStats(&after)
	if n := bytes.Count(first, []byte("a")); n != size {
		t.Errorf("%d bytes of the first text are left", n)
	}
	if each := (after.TotalAlloc - before.TotalAlloc) / texts; each > 3*size { // the text itself is one of them
		t.Errorf("%d bytes are allocated for a text of %d", each, size)
	}
}

// A large text goes back after the last user of a hold that lends, and stays where somebody may read it later.
func TestLend(t *testing.T) {
	text := bytes.Repeat([]byte("x"), 100<<10)
	for _, length := range []int64{int64(len(text)), -1} {
		for _, c := range []struct {
			name        string
			lends       bool
			keep, again bool // before the text is owned, or after that
			back        bool
		}{
			{name: "lent", lends: true, back: true},
			{name: "not lent"},
			{name: "kept before", lends: true, keep: true},
			{name: "kept", lends: true, again: true},
		} {
			b := New(1<<20, 1<<20, wait)
			h := b.Hold()
			if c.lends {
				h.Lend()
			}
			got, lent, err := ReadLent(h, bytes.NewReader(text), length, 1<<20, func(n int64) error { return h.Take(t.Context(), n) })
			if err != nil || !bytes.Equal(got, text) || (lent != nil) != c.lends {
				t.Fatalf("%s: %d bytes, lent: %t, %v", c.name, len(got), lent != nil, err)
			}
			if c.keep {
				h.Keep()
			}
			user := h.Share()
			h.Own(lent)
			if c.again {
				h.Keep()
			}
			h.Release()
			if !bytes.Equal(got, text) {
				t.Errorf("%s: it is put back before its last user is done", c.name)
			}
			user.Release()
			if back := !bytes.Equal(got, text); back != c.back {
				t.Errorf("%s: put back: %t", c.name, back)
			}
			if out := pool.Lent(); len(out) > 0 {
				t.Errorf("%s: %v are lent", c.name, out)
			}
		}
	}
}
