// Package sparing keeps what happens often from filling the log: [Repeats] has each thing logged at once and then
// once a minute with how often it happened, and [Lines] lets so many lines pass in a time and counts the others.
package sparing

import (
	"sync"
	"time"
)

// Again is the time between two lines about one thing.
const Again = time.Minute

// most bounds the things that are told apart at a time. What comes then is counted together, as the zero value of K.
const most = 1000

// Repeats counts what happens, by a key. Its zero value is ready for use by any goroutine.
type Repeats[K comparable] struct {
	mu   sync.Mutex
	said map[K]*said
}

// said is what is known of one thing.
type said struct {
	at    time.Time // when it was logged last
	since int       // how often it happened after that
}

// Note counts one more of a thing. It returns how often it has happened since it was logged last, if it is to be logged
// now, and 0 otherwise. The key that it returns is to be logged: it is the zero value if too many things happen.
func (r *Repeats[K]) Note(key K) (K, int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.said == nil {
		r.said = make(map[K]*said)
	}
	of := r.said[key]
	if of == nil {
		if len(r.said) >= most {
			var others K
			key = others
		}
		if of = r.said[key]; of == nil {
			of = &said{}
			r.said[key] = of
		}
	}
	of.since++
	if time.Since(of.at) < Again {
		return key, 0
	}
	times := of.since
	*of = said{at: time.Now()}
	return key, times
}

// Due returns what has happened since it was logged, more than a minute ago, with how often. It counts as logged now.
// Things that have not happened since are forgotten.
func (r *Repeats[K]) Due() map[K]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	due := make(map[K]int)
	for key, of := range r.said {
		switch {
		case time.Since(of.at) < Again:
		case of.since == 0:
			delete(r.said, key)
		default:
			due[key] = of.since
			*of = said{at: time.Now()}
		}
	}
	return due
}

// How many lines pass.
const (
	lines    = 100
	interval = 10 * time.Second
)

// Lines lets 100 lines pass in each ten seconds. Its zero value is ready for use by any goroutine.
type Lines struct {
	mu    sync.Mutex
	since time.Time // of the present interval
	begun int       // lines in it that passed or not
}

// Pass reports whether a line may be logged. left is how many lines were kept back before, if that is to be
// logged now.
func (l *Lines) Pass() (left int, pass bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	left = l.takeLeft()
	if l.begun == 0 {
		l.since = time.Now()
	}
	l.begun++
	return left, l.begun <= lines
}

// Left is how many lines were kept back in an interval that is over, or in any with end; 0 if that was told.
func (l *Lines) Left(end bool) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if end {
		l.since = time.Time{}
	}
	return l.takeLeft()
}

// takeLeft is Left. It begins another interval if one is over.
func (l *Lines) takeLeft() int {
	if time.Since(l.since) < interval {
		return 0
	}
	left := max(0, l.begun-lines)
	l.begun = 0
	return left
}
