package metrics

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"

	"go.opentelemetry.io/otel/attribute"

	"taskgate/internal/semconv"
)

// Caller is who sends requests: a principal or, where it has not signed in, an address and the name of its client. The
// zero Caller stands for all those that there is no room for.
type Caller struct{ Principal, Address, Client string }

// Sent is a kind of requests: who sends them, and their method.
type Sent struct {
	Caller
	Method string
}

// MarshalText makes a key of JSON of it. Its parts have no tabs: see cleanPart.
func (s Sent) MarshalText() ([]byte, error) {
	return []byte(strings.Join([]string{s.Principal, s.Address, s.Client, s.Method}, "\t")), nil
}

// UnmarshalText is the reverse of MarshalText.
func (s *Sent) UnmarshalText(text []byte) error {
	parts := strings.Split(string(text), "\t")
	if len(parts) != 4 {
		return errors.New("no kind of requests")
	}
	*s = Sent{Caller{parts[0], parts[1], parts[2]}, parts[3]}
	return nil
}

const (
	// mostSent is how many kinds of requests to an upstream are told apart in a minute, and topSent how many of them are
	// told to others.
	mostSent = 1000
	topSent  = 20
	// maxPart bounds the name of a principal or a client, in bytes.
	maxPart = 128
)

// cleanPart cuts a name, and takes the tabs out.
func cleanPart(name string) string {
	if len(name) > maxPart {
		name = strings.ToValidUTF8(name[:maxPart], "")
	}
	return strings.ReplaceAll(name, "\t", " ")
}

// methodCaller is the method under which Names has principals: they have series of their own, as tools have.
const methodCaller = "caller"

// sent is what the metric of callers says of a request.
type sent struct{ principal, method string }

func (s sent) attributes() []attribute.KeyValue {
	attrs := []attribute.KeyValue{semconv.MCPMethod.String(s.method)}
	if s.principal != "" {
		attrs = append(attrs, semconv.Principal.String(s.principal))
	}
	return attrs
}

// Sent counts a request to an upstream, by who sends it and its method.
func (m *Metrics) Sent(ctx context.Context, upstream string, by Caller, method string) {
	if m == nil {
		return
	}
	by.Principal, by.Client = cleanPart(by.Principal), cleanPart(by.Client)
	m.recent.count(upstream, func(c *Counts) {
		key := Sent{by, method}
		if _, known := c.Sent[key]; !known && len(c.Sent) >= mostSent {
			key = Sent{Method: method}
		}
		if c.Sent == nil {
			c.Sent = make(map[Sent]int)
		}
		c.Sent[key]++
	})
	if by.Principal != "" {
		m.Names.Learn("", methodCaller, by.Principal)
	}
	k := sent{m.Names.Bound("", methodCaller, by.Principal), method}
	m.requestsSent.Add(ctx, 1, m.senders.of(k, sent.attributes).add...)
}

// keepTop leaves the largest counts, and puts the others together by method.
func keepTop(all map[Sent]int) map[Sent]int {
	if len(all) <= topSent {
		return all
	}
	keys := make([]Sent, 0, len(all))
	for key := range all {
		keys = append(keys, key)
	}
	slices.SortFunc(keys, func(a, b Sent) int { return cmp.Compare(all[b], all[a]) })
	top := make(map[Sent]int, topSent)
	for i, key := range keys {
		n := all[key]
		if i >= topSent {
			key = Sent{Method: key.Method}
		}
		top[key] += n
	}
	return top
}
