package chaos

import (
	"context"
	"fmt"
	"sync"
	"time"

	"taskgate/internal/mcp"
)

// asked is a question of the upstream, and what it has heard.
type asked struct {
	at     time.Time
	stream *stream       // the call's; nil at the modern upstream
	heard  chan struct{} // closed with the first answer
	// answers are all that came, closed is when the first did, or when the call had
	// ended without one.
	answers []string
	closed  time.Time
}

// ask asks those of the questions of a call that are due after so many pieces of
// progress, and waits for the answers, which it adds.
func (u *upstream) ask(ctx context.Context, st *stream, m message, due int, answers []string) bool {
	var all sync.WaitGroup
	for n, at := range m.Params.Arguments.Asks {
		if at != due {
			continue
		}
		name := questionName(m.Params.Arguments.Call, n, 1)
		a := &asked{at: time.Now(), stream: st, heard: make(chan struct{})}
		u.mu.Lock()
		u.asked[name] = a
		u.mu.Unlock()
		st.add(fmt.Sprintf(`{"jsonrpc":"2.0","id":%q,"method":%q,"params":{"mode":"form","message":%q,"requestedSchema":{"type":"object","properties":{"name":{"type":"string"}}}}}`,
			name, mcp.MethodElicit, name), false)
		all.Go(func() {
			select {
			case <-a.heard:
			case <-ctx.Done():
			}
			u.mu.Lock()
			defer u.mu.Unlock()
			if a.closed.IsZero() {
				a.closed = time.Now()
			}
			if len(a.answers) > 0 {
				answers[n] = a.answers[0]
			}
		})
	}
	all.Wait()
	return ctx.Err() == nil
}

// responded takes the answer to a question. As servers do, it goes by the first one.
func (u *upstream) responded(m message) {
	name, err := unquote(m.ID)
	value := "(error)"
	if m.Result != nil {
		value = valueOf(m.Result)
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	a := u.asked[name]
	if err != nil || a == nil {
		u.strays++
		return
	}
	if a.answers = append(a.answers, value); len(a.answers) == 1 && a.closed.IsZero() {
		a.closed = time.Now()
		close(a.heard)
	}
}

// open are the questions whose calls go on, by name.
func (u *upstream) open() map[string]*asked {
	u.mu.Lock()
	defer u.mu.Unlock()
	list := make(map[string]*asked)
	for name, a := range u.asked {
		if a.closed.IsZero() {
			list[name] = a
		}
	}
	return list
}
