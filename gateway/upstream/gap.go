package upstream

import (
	"context"
	"encoding/json"
	"maps"

	"taskgate/gateway/upstream/listed"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/shim"
)

// This file follows a break of the GET stream of a session: what changed meanwhile is told.

// noteBreak keeps the marks of the lists as they are when the stream breaks.
func (h *getHold) noteBreak() {
	marks := h.s.lists.marks.Copy()
	h.s.get.mu.Lock()
	defer h.s.get.mu.Unlock()
	if h.missed == nil {
		h.missed = marks
	}
}

// skipGap follows a break in which no event is lost.
func (h *getHold) skipGap() {
	h.s.get.mu.Lock()
	defer h.s.get.mu.Unlock()
	if !h.bridging {
		h.missed = nil
	}
}

// bridgeGap follows a break in which events may be lost. It makes the subscriptions that the server may lack, tells
// all listeners to look at their resources again, and has the lists compared as long as life lasts.
func (h *getHold) bridgeGap(ctx, life context.Context) {
	uris := h.s.subscribeAgain(ctx, h.l)
	h.s.listeners.passMissed(shim.Filter{Resources: uris})
	l := h.l
	h.s.get.mu.Lock()
	h.gaps++
	begin := !h.bridging
	h.bridging = true
	h.s.get.mu.Unlock()
	if begin {
		h.s.t.work.Go(life, func(context.Context) { h.compareLists(life, l) })
	}
}

// compareLists tells the listeners which lists have changed in the breaks. A break meanwhile has them compared again.
func (h *getHold) compareLists(ctx context.Context, l *link) {
	st := &h.s.get
	for again := true; again; {
		st.mu.Lock()
		gaps, before := h.gaps, h.missed
		st.mu.Unlock()
		before, unread := h.s.lists.addMarks(ctx, before)
		wanted := reduceFilter(h.s.listeners.wantedLists(), l.server, true)
		changed, err := h.s.lists.marks.FindChanges(ctx, before, wanted, unread, h.s.lists.askList)
		if !wanted.ToolsListChanged || changed.ToolsListChanged {
			h.s.t.memory.listChanged(mcp.NotifyToolsListChanged, h.s.key.isSame)
		}
		if err == nil {
			h.s.listeners.passMissed(changed)
		}
		st.mu.Lock()
		again = err == nil && h.gaps != gaps
		if !again {
			h.bridging = false
		}
		if !again && err == nil {
			h.missed = nil
		}
		st.mu.Unlock()
	}
}

// sessionLists are the lists that the client of a session has read, at any replica.
type sessionLists struct {
	s     *session
	marks listed.Marks
}

// addMarks adds to marks those of lists that were read since they were taken, or at other replicas. unknown says that the
// latter cannot be had.
func (l *sessionLists) addMarks(ctx context.Context, marks map[string]listed.Mark) (all map[string]listed.Mark, unknown bool) {
	all = make(map[string]listed.Mark)
	if l.s.shared.Load() {
		st, _, err := l.s.t.loadShared(ctx, l.s.key.key)
		unknown = err != nil
		for method, sum := range st.Lists {
			all[method] = listed.Mark{Sum: sum, Known: true}
		}
	}
	maps.Copy(all, l.marks.Copy())
	maps.Copy(all, marks)
	return all, unknown
}

// noteList notes a page of a list that the client has read, for all replicas.
func (l *sessionLists) noteList(ctx context.Context, method string, params, page json.RawMessage) {
	sum, changed := l.marks.NotePage(method, params, page)
	if !changed || !l.s.shared.Load() {
		return
	}
	l.s.t.work.Go(ctx, func(ctx context.Context) {
		l.s.t.changeShared(ctx, l.s.key.key, func(st *shared) {
			st.Lists = maps.Clone(st.Lists)
			if st.Lists == nil {
				st.Lists = make(map[string]uint64, 1)
			}
			st.Lists[method] = sum
		})
	})
}

// askList asks for a page of a list in the generation in use.
func (l *sessionLists) askList(ctx context.Context, method string, params json.RawMessage) (json.RawMessage, error) {
	to := l.s.currentLink()
	if to == nil {
		return nil, errOver
	}
	ctx, cancel := l.s.t.wire.slowContext(ctx)
	defer cancel()
	return pageOf(l.s.newExchange(to.target, shim.Request{Method: method, Params: params, Session: l.s.from}, nil).runRequest(ctx))
}

// pageOf is the page that answers a request; nil if the server does not know the method.
func pageOf(m jsonrpc.Message, err error) (json.RawMessage, error) {
	if err == nil && m.Error != nil {
		err = m.Error
	}
	if rpc := rpcOf(err); rpc != nil && rpc.Code == mcp.CodeMethodNotFound {
		return nil, nil
	}
	return m.Result, err
}
