package jsonrpc

import "encoding/json"

// Paths are members of nested objects that are looked for together. The zero Paths has none.
type Paths struct {
	is   bool // a member that is looked for
	at   int  // its place among the values
	next map[string]*Paths
}

// Add adds the member at path. Pick puts its value at this place.
func (p *Paths) Add(place int, path ...string) {
	for _, name := range path {
		if p.next == nil {
			p.next = make(map[string]*Paths)
		}
		if p.next[name] == nil {
			p.next[name] = new(Paths)
		}
		p = p.next[name]
	}
	p.is, p.at = true, place
}

// Pick is [Get] for all paths: it sets the value of each one that is there. It reads each byte once, however deep the
// paths are. See [Get] for what obj must be.
func (p *Paths) Pick(obj []byte, values []json.RawMessage) {
	if i := skipSpace(obj, 0); i < len(obj) && obj[i] == '{' {
		p.pickIn(obj, i, values)
	}
}

// pickIn is Pick for the object that begins at i. It returns the index behind it, or -1.
func (p *Paths) pickIn(b []byte, i int, values []json.RawMessage) int {
	for i = skipSpace(b, i+1); i < len(b) && b[i] == '"'; {
		end := skipString(b, i)
		if end < 0 {
			return -1
		}
		var next *Paths
		if len(p.next) > 0 {
			next = p.next[unquote(b[i:end])]
		}
		from := skipSpace(b, skipSpace(b, end)+1) // behind the colon
		if next != nil && len(next.next) > 0 && from < len(b) && b[from] == '{' {
			i = next.pickIn(b, from, values)
		} else {
			i = skipValue(b, from)
		}
		if i < 0 {
			return -1
		}
		if next != nil && next.is {
			values[next.at] = b[from:i:i]
		}
		if i = skipSpace(b, i); i < len(b) && b[i] == ',' {
			i = skipSpace(b, i+1)
		}
	}
	if i >= len(b) || b[i] != '}' {
		return -1
	}
	return i + 1
}
