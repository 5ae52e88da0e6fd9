package chaos

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"taskgate/internal/taskclient"
)

// What all clients see of the pieces of one task, however they get them: partial results
// by their seq.

// The ways in which pieces come.
const (
	byListening = "on listen streams"
	byGET       = "on GET streams of sessions"
)

// shown are the pieces of one task.
type shown struct {
	id     string
	way    string
	pieces []string // as they were first read
	total  int      // how many there were at the end, -1 while that is not known
	reads  int      // of pieces, over all streams of all clients
	ends   int      // of ends
}

// shownOf is what there is of a task. j.mu is held.
func (j *judge) shownOf(id, way string) *shown {
	s := j.shows[id]
	if s == nil {
		s = &shown{id: id, way: way, total: -1}
		j.shows[id] = s
	}
	return s
}

// view is what one client sees of the pieces of one task, over all of its streams.
type view struct {
	judge *judge
	*shown
	next  int  // the number of the next one
	over  bool // on this stream, the end has come
	ended bool // on any
}

// newView is that of a client that begins with the piece of a number.
func (j *judge) newView(id, way string, next int) *view {
	j.mu.Lock()
	defer j.mu.Unlock()
	return &view{judge: j, shown: j.shownOf(id, way), next: next}
}

// piece takes one.
func (v *view) piece(no int, content json.RawMessage) {
	j := v.judge
	j.mu.Lock()
	defer j.mu.Unlock()
	v.reads++
	switch {
	case v.over || v.ended:
		j.blamed("task %s: %s, piece %d came after the end", v.id, v.way, no)
	case no != v.next:
		j.blamed("task %s: %s, piece %d came in place of %d", v.id, v.way, no, v.next)
	case no < len(v.pieces) && v.pieces[no] != string(content):
		j.blamed("task %s: %s, piece %d was %.200s, and is now %.200s", v.id, v.way, no, v.pieces[no], content)
	case no == len(v.pieces):
		v.pieces = append(v.pieces, string(content))
	}
	v.next = no + 1
}

// status takes a status that the stream tells of. All pieces come before a final one.
func (v *view) status(status string) {
	if (state{status: status}).ended() {
		v.end()
	} else if v.over {
		v.judge.blame("task %s: %s, %s was told after the end", v.id, v.way, status)
	}
}

// late takes the end of a task that had ended when its client began to listen: there are no
// pieces of it then (P2), which says nothing of how many there were.
func (v *view) late() { v.over, v.ended = true, true }

// end takes the end.
func (v *view) end() {
	j := v.judge
	j.mu.Lock()
	defer j.mu.Unlock()
	v.over, v.ended = true, true
	v.ends++
	if v.total >= 0 && v.total != v.next {
		j.blamed("task %s: %s, it ended after %d pieces, and after %d", v.id, v.way, v.total, v.next)
	}
	v.total = v.next
}

// checkShown holds what clients saw of a task that has ended against what the upstream
// said: nothing out of order, nothing twice, and, if the call has run to its end, nothing
// left out.
func checkShown(r *record, s *shown) error {
	seen, err := s.texts()
	if err != nil {
		return err
	}
	said := saying(r.call.id)[r.call.relayed:]
	if !r.call.tool.stream {
		said = nil // or nothing that is shown before the result
	}
	whole := s.total >= 0 && (r.end.status == taskclient.Completed || r.end.err != nil && r.end.err.Code == codeWrong)
	return compare(seen, said, whole)
}

// compare holds texts that were seen against those that were said: all of them, or the
// first ones.
func compare(seen, said []string, whole bool) error {
	for i, text := range seen {
		if i >= len(said) || text != said[i] {
			return fmt.Errorf("of %d texts the one at %d is %.100q; before it %.300q; the upstream said %.2000q", len(seen), i, text, seen[max(0, i-2):i], said)
		}
	}
	if whole && len(seen) < len(said) {
		return fmt.Errorf("there are %d texts, and the upstream said %d", len(seen), len(said))
	}
	return nil
}

// checkTask checks what there is of a task that has ended. j.mu is held.
func (j *judge) checkTask(r *record) {
	s := j.shows[r.id]
	if s == nil {
		return
	}
	if err := checkShown(r, s); err != nil {
		j.blamed("%s (%s, %s): task %s ended as %s: %v", r.call.id, r.call.tool.name, s.way, r.id, describe(*r.end), err)
	}
}

// texts are those of all blocks, which pieces have one or several of.
func (s *shown) texts() ([]string, error) {
	var list []string
	for _, p := range s.pieces {
		var blocks []struct{ Text string }
		if err := json.Unmarshal([]byte(p), &blocks); err != nil || len(blocks) == 0 {
			return nil, fmt.Errorf("a piece is %.200s (%w)", p, err)
		}
		for _, b := range blocks {
			list = append(list, b.Text)
		}
	}
	return list, nil
}

// checkStray is checkShown for a task whose handle was lost on its way to the client:
// which call it is, its first piece says.
func (s *shown) checkStray() error {
	seen, err := s.texts()
	if err != nil || len(seen) == 0 {
		return err
	}
	id, _, _ := strings.Cut(seen[0], " ")
	return compare(seen, saying(id), false)
}

// piecesSeen sums up, for the summary.
func (j *judge) piecesSeen() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	type sum struct{ tasks, pieces, reads, ends int }
	ways := map[string]*sum{}
	for _, s := range j.shows {
		if ways[s.way] == nil {
			ways[s.way] = &sum{}
		}
		w := ways[s.way]
		w.pieces, w.reads, w.ends = w.pieces+len(s.pieces), w.reads+s.reads, w.ends+s.ends
		if len(s.pieces) > 0 {
			w.tasks++
		}
	}
	var b strings.Builder
	for _, way := range slices.Sorted(maps.Keys(ways)) {
		w := ways[way]
		fmt.Fprintf(&b, "  %6d  %s, of %d tasks, read %d times, and %d ends\n", w.pieces, way, w.tasks, w.reads, w.ends)
	}
	return b.String()
}
