package sim

import "time"

// How jobs are followed. Who asked within followWithin still follows the job; two may for as long as an adoption takes:
// until one that was taken for gone hears of it.
const (
	followWithin  = 4 * time.Second
	adoptWithin   = 10 * time.Second
	cancelsWithin = 5 * time.Second
)

// following is who follows a job of a server.
type following struct {
	last map[string]time.Time // when each replica asked for it
	both time.Time            // since when two do; zero if one does
}

// AskForJob notes that a replica asks how a job of the call stands, or for its result.
func (c *Call) AskForJob(server, id, replica, tool string) {
	c.j.mu.Lock()
	defer c.j.mu.Unlock()
	c.note(server, "is asked for "+id+" by "+replica+" with "+tool)
	f := c.jobs[id]
	if f == nil {
		f = &following{last: map[string]time.Time{}}
		c.jobs[id] = f
	}
	now, two, back := time.Now(), false, false
	for other, at := range f.last {
		switch {
		case other == replica:
			back = now.Sub(at) < followWithin
		case now.Sub(at) < followWithin:
			two = true
		}
	}
	f.last[replica] = now
	switch {
	case !two:
		f.both = time.Time{}
	case f.both.IsZero():
		f.both = now
	case back && now.Sub(f.both) > adoptWithin:
		c.blame("the job %s is asked for by two replicas since %v", id, now.Sub(f.both))
	}
}

// Stop notes that the client is about to cancel the task.
func (c *Call) Stop() {
	c.j.mu.Lock()
	defer c.j.mu.Unlock()
	c.stops = time.Now()
}

// EndJob notes that a job has ended at its server. One that nobody has asked for yet is cancelled where its task was lost with
// its replica.
func (c *Call) EndJob(server, id, state string) {
	c.j.mu.Lock()
	defer c.j.mu.Unlock()
	c.note(server, "ends "+id+": "+state)
	switch {
	case state == "stopped" && c.outlives() && c.stops.IsZero() && !c.isDisturbed(Forgets):
		c.blame("the job %s was cancelled at its server, and its client had not asked for that", id)
	case state == "done" && c.stopped && time.Since(c.stops) > cancelsWithin && !c.isDisturbed(Any):
		c.blame("the task was cancelled, and the job %s went on to its end", id)
	}
}

// outlives reports whether nothing but the store can end the call: it is a task, and has a job that was asked for. j.mu is
// held.
func (c *Call) outlives() bool { return c.acknowledged && len(c.jobs) > 0 }

// CountJobs counts the jobs of all calls that were asked for, and those of them that more than one replica asked for.
func (j *Judge) CountJobs() (jobs, handedOn int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, c := range j.calls {
		for _, f := range c.jobs {
			jobs++
			if len(f.last) > 1 {
				handedOn++
			}
		}
	}
	return jobs, handedOn
}
