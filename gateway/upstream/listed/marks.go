// Package listed marks the lists that clients have read of a server, and finds out which of them have changed after a
// break of the server's stream. It takes the pages of lists, and asks for them by a function. It knows nothing of
// sessions and streams.
package listed

import (
	"context"
	"encoding/json"
	"errors"
	"hash/fnv"
	"maps"
	"sync"

	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/shim"
)

// Marks are the marks of lists, by the method that reads each. Only a list that differs from its mark is told as
// changed: some proxies cut a stream every few seconds, and clients would read all lists each time. The zero value is
// ready. It is safe for concurrent use.
type Marks struct {
	mu sync.Mutex
	m  map[string]Mark
}

// Mark is the mark of one list.
type Mark struct {
	// Sum is over the entries of the list, in any order. It is the same in all processes.
	Sum uint64
	// Known says that the list was read to its end.
	Known bool

	part uint64 // over the entries of the pages so far
	next string // the cursor of the page that follows those
}

// maxPages bounds a list.
const maxPages = 1000

// kinds are the lists that a server may tell to have changed.
var kinds = []struct {
	methods []string
	wanted  func(*shim.Filter) *bool
}{
	{[]string{mcp.MethodToolsList}, func(f *shim.Filter) *bool { return &f.ToolsListChanged }},
	{[]string{mcp.MethodPromptsList}, func(f *shim.Filter) *bool { return &f.PromptsListChanged }},
	{[]string{mcp.MethodResourcesList, mcp.MethodResourceTemplatesList}, func(f *shim.Filter) *bool { return &f.ResourcesListChanged }},
}

// entriesOf is the member of a result that has the entries of a list; "" if the method reads none.
func entriesOf(method string) string {
	switch method {
	case mcp.MethodToolsList:
		return "tools"
	case mcp.MethodPromptsList:
		return "prompts"
	case mcp.MethodResourcesList:
		return "resources"
	case mcp.MethodResourceTemplatesList:
		return "resourceTemplates"
	}
	return ""
}

// sumEntries adds up the entries of a page that are new to seen; nil counts all.
func sumEntries(page json.RawMessage, member string, seen map[uint64]bool) (sum uint64) {
	list, _ := jsonrpc.Get(page, member)
	for raw := range jsonrpc.Elements(list) {
		entry := fnv.New64a()
		entry.Write(raw)
		one := entry.Sum64() | 1
		if seen == nil || !seen[one] {
			sum += one
		}
		if seen != nil {
			seen[one] = true
		}
	}
	return sum
}

// NotePage notes a page that a client has read by a request with these params. changed says that the list is complete
// with it, and has the new sum now. The answer to a method that reads no list changes nothing.
func (l *Marks) NotePage(method string, params, page json.RawMessage) (now uint64, changed bool) {
	member := entriesOf(method)
	if member == "" {
		return 0, false
	}
	cursor := cursorOf(params, "cursor")
	sum, next := sumEntries(page, member, nil), cursorOf(page, "nextCursor")
	l.mu.Lock()
	defer l.mu.Unlock()
	mark := l.m[method]
	if cursor == "" {
		mark.part = 0
	} else if mark.next != cursor {
		return 0, false // pages out of order
	}
	mark.part, mark.next = mark.part+sum, next
	if next == "" {
		changed = !mark.Known || mark.Sum != mark.part
		mark.Sum, mark.Known = mark.part, true
	}
	l.setMark(method, mark)
	return mark.Sum, changed
}

// setMark sets a mark. l.mu is held.
func (l *Marks) setMark(method string, mark Mark) {
	if l.m == nil {
		l.m = make(map[string]Mark, 1)
	}
	l.m[method] = mark
}

// Copy returns the marks as they are now.
func (l *Marks) Copy() map[string]Mark {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.m)
}

// cursorOf is a cursor in its spelling; "" if there is none.
func cursorOf(obj json.RawMessage, name string) string {
	raw, ok := jsonrpc.Get(obj, name)
	if !ok || string(raw) == "null" {
		return ""
	}
	return string(raw)
}

// AskPage asks the server for a page of a list. The page is nil if the server does not know the method.
type AskPage func(ctx context.Context, method string, params json.RawMessage) (page json.RawMessage, err error)

// FindChanges returns what of f has changed since the marks were taken; its resources stay. A list that cannot be read
// counts as changed, since its readers may need to look again; one that the server does not know does not. unread is the
// verdict on a kind of which no mark is known. An error is the end of ctx.
func (l *Marks) FindChanges(ctx context.Context, before map[string]Mark, f shim.Filter, unread bool, ask AskPage) (shim.Filter, error) {
	changed := shim.Filter{Resources: f.Resources}
	for _, kind := range kinds {
		if !*kind.wanted(&f) {
			continue
		}
		read := false
		for _, method := range kind.methods {
			mark, ok := before[method]
			if !ok {
				continue
			}
			read = true
			now, err := l.readMark(ctx, method, ask)
			if ctx.Err() != nil {
				return changed, context.Cause(ctx)
			}
			differs := !errors.Is(err, errUnknown) && (err != nil || !mark.Known || now != mark.Sum)
			*kind.wanted(&changed) = *kind.wanted(&changed) || differs
		}
		if !read {
			*kind.wanted(&changed) = unread
		}
	}
	return changed, nil
}

// errUnknown says that the server does not know a method.
var errUnknown = errors.New("the server has no such list")

// readMark reads a list to its end, and notes its mark. The list ends also with a page that brings nothing new.
func (l *Marks) readMark(ctx context.Context, method string, ask AskPage) (uint64, error) {
	seen := make(map[uint64]bool)
	var sum uint64
	var params json.RawMessage
	for range maxPages {
		page, err := ask(ctx, method, params)
		if err == nil && page == nil {
			err = errUnknown
		}
		if err != nil {
			return 0, err
		}
		more := sumEntries(page, entriesOf(method), seen)
		sum += more
		cursor := cursorOf(page, "nextCursor")
		if cursor == "" || more == 0 {
			break
		}
		params = append(append([]byte(`{"cursor":`), cursor...), '}')
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.setMark(method, Mark{Sum: sum, Known: true})
	return sum, nil
}

// Wanted returns the lists that either filter wants to hear of.
func Wanted(one, other shim.Filter) (both shim.Filter) {
	for _, kind := range kinds {
		*kind.wanted(&both) = *kind.wanted(&one) || *kind.wanted(&other)
	}
	return both
}

// Every is a filter of all lists.
var Every = shim.Filter{ToolsListChanged: true, PromptsListChanged: true, ResourcesListChanged: true}
