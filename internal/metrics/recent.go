package metrics

import (
	"slices"
	"sync"
	"time"
)

// RecentBounds are the upper bounds of Counts.Durations, in seconds.
var RecentBounds = []float64{.01, .02, .05, .1, .2, .5, 1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 14400}

// Counts says what happened to the calls and tasks of one upstream in one minute.
type Counts struct {
	Calls     map[string]int `json:"calls,omitempty"` // by semconv.CallAnswer
	Made      int            `json:"made,omitempty"`
	Ended     map[string]int `json:"ended,omitempty"`     // by semconv.TaskOutcome
	Sent      map[Sent]int   `json:"sent,omitempty"`      // requests; when read, the most of them by who has sent them
	Durations []int          `json:"durations,omitempty"` // of calls with a reply and of tasks that ended; one more than RecentBounds
}

// Add adds other counts.
func (c *Counts) Add(o Counts) {
	add := func(to *map[string]int, from map[string]int) {
		for word, n := range from {
			if *to == nil {
				*to = make(map[string]int)
			}
			(*to)[word] += n
		}
	}
	add(&c.Calls, o.Calls)
	add(&c.Ended, o.Ended)
	for key, n := range o.Sent {
		if c.Sent == nil {
			c.Sent = make(map[Sent]int)
		}
		c.Sent[key] += n
	}
	c.Made += o.Made
	for i, n := range o.Durations {
		c.took(i, n)
	}
}

// took adds to a bucket of the durations. It ignores a bucket that only another version of the program
// knows.
func (c *Counts) took(bucket, n int) {
	if c.Durations == nil {
		c.Durations = make([]int, len(RecentBounds)+1)
	}
	if bucket < len(c.Durations) {
		c.Durations[bucket] += n
	}
}

// recentMinutes is how many minutes are kept, so that a reader may skip some turns.
const recentMinutes = 10

// recent counts by minute, for operators who look at this process itself.
type recent struct {
	mu      sync.Mutex
	minutes map[int64]map[string]*Counts // by Unix time in minutes and by upstream
}

// count changes the counts of this minute.
func (r *recent) count(upstream string, change func(*Counts)) {
	now := time.Now().Unix() / 60
	r.mu.Lock()
	defer r.mu.Unlock()
	minute := r.minutes[now]
	if minute == nil {
		if r.minutes == nil {
			r.minutes = make(map[int64]map[string]*Counts)
		}
		minute = make(map[string]*Counts)
		r.minutes[now] = minute
		for old := range r.minutes {
			if old <= now-recentMinutes {
				delete(r.minutes, old)
			}
		}
	}
	c := minute[upstream]
	if c == nil {
		c = &Counts{Calls: make(map[string]int), Ended: make(map[string]int)}
		minute[upstream] = c
	}
	change(c)
}

// Recent returns what happened in the last minutes, by Unix time in minutes and by upstream.
func (m *Metrics) Recent() map[int64]map[string]Counts {
	if m == nil {
		return nil
	}
	m.recent.mu.Lock()
	defer m.recent.mu.Unlock()
	all := make(map[int64]map[string]Counts, len(m.recent.minutes))
	for at, minute := range m.recent.minutes {
		all[at] = make(map[string]Counts, len(minute))
		for upstream, c := range minute {
			var sum Counts
			sum.Add(*c)
			sum.Sent = keepTop(sum.Sent)
			all[at][upstream] = sum
		}
	}
	return all
}

// bucketOf is the bucket of a duration.
func bucketOf(d time.Duration) int {
	i, _ := slices.BinarySearch(RecentBounds, d.Seconds())
	return i
}
