package fake

import (
	"encoding/json"
	"fmt"
)

// Listens has a modern server tell of its tasks to those who listen (T43). It confirms those that
// it knows, and says how a task stands each time that it has changed.
func (t *Tasks) Listens() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.open = make(map[*Exchange]chan struct{})
	t.s.On("subscriptions/listen", declaring(t.listen))
}

// Mute has those who listen hear nothing more, although the server has confirmed that they do.
func (t *Tasks) Mute() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.mute = true
}

// Listening is how many subscriptions are open.
func (t *Tasks) Listening() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.open)
}

// CutListening breaks all subscriptions.
func (t *Tasks) CutListening() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, cut := range t.open {
		close(cut)
	}
	t.open = make(map[*Exchange]chan struct{})
}

// listen serves a subscription.
func (t *Tasks) listen(x *Exchange) {
	cut := make(chan struct{})
	t.mu.Lock()
	t.open[x] = cut
	t.mu.Unlock()
	defer func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		delete(t.open, x)
	}()
	jobs := t.named(x)
	ids := []string{}
	told := make(chan string)
	for _, j := range jobs {
		ids = append(ids, j.ID)
		_, changed := j.whole()
		go j.tell(x, changed, told)
	}
	list, _ := json.Marshal(ids)
	meta := fmt.Sprintf(`"_meta":{"io.modelcontextprotocol/subscriptionId":%s}`, x.ID)
	x.Event(fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{%s,"notifications":{"taskIds":%s}}}`, meta, list))
	for {
		select {
		case state := <-told:
			t.mu.Lock()
			mute := t.mute
			t.mu.Unlock()
			if !mute {
				x.Event(fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/tasks","params":{%s,%s}}`, meta, state))
			}
		case <-cut:
			x.Cut()
		case <-x.R.Context().Done():
			return
		case <-x.s.closing:
			return
		}
	}
}

// named are the tasks that a subscription is to, as far as there are such.
func (t *Tasks) named(x *Exchange) (jobs []*Job) {
	var p struct {
		Notifications struct {
			TaskIDs []string `json:"taskIds"`
		} `json:"notifications"`
	}
	_ = json.Unmarshal(x.Params, &p)
	known := map[string]*Job{}
	for _, j := range t.Jobs() {
		known[j.ID] = j
	}
	for _, id := range p.Notifications.TaskIDs {
		if j := known[id]; j != nil {
			jobs = append(jobs, j)
		}
	}
	return jobs
}

// tell says how the task stands after each change, until the exchange is over.
func (j *Job) tell(x *Exchange, changed <-chan struct{}, told chan<- string) {
	for {
		select {
		case <-changed:
		case <-x.R.Context().Done():
			return
		case <-x.s.closing:
			return
		}
		var state string
		state, changed = j.whole()
		select {
		case told <- state:
		case <-x.R.Context().Done():
			return
		case <-x.s.closing:
			return
		}
	}
}
