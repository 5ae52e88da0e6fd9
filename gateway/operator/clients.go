package operator

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"time"

	"taskgate/internal/metrics"
)

const (
	// mostHolders is how many clients a replica reports that hold something, mostClients how many are shown, and mostNames
	// how many names of clients at one address.
	mostHolders = 50
	mostClients = 200
	mostNames   = 5
)

// sum is what a client holds, of everything.
func (h Holdings) sum() int { return h.Sessions + h.Streams + h.Calls + h.Tasks }

func (h *Holdings) add(o Holdings) {
	h.Sessions, h.Streams, h.Calls, h.Tasks = h.Sessions+o.Sessions, h.Streams+o.Streams, h.Calls+o.Calls, h.Tasks+o.Tasks
}

// holders adds the tasks to what clients hold here, and leaves those that hold most.
func (d *Deployment) holders(all []Held) []Held {
	for share, n := range d.o.Tasks.Shares() {
		i := slices.IndexFunc(all, func(h Held) bool { return h.Principal == share.Owner && h.Address == share.Address })
		if i < 0 {
			i, all = len(all), append(all, Held{Principal: share.Owner, Address: share.Address})
		}
		all[i].Tasks += n
	}
	slices.SortFunc(all, func(a, b Held) int {
		return cmp.Or(cmp.Compare(b.sum(), a.sum()), cmp.Compare(a.Principal, b.Principal), cmp.Compare(a.Address, b.Address))
	})
	all = all[:min(len(all), mostHolders)]
	for i := range all {
		all[i].Principal = cutText(all[i].Principal)
	}
	return all
}

// clients are those that are put together, by principal and address.
type clients map[[2]string]*Client

// of returns the client that a principal, or an address without one, stands for.
func (c clients) of(principal, address string) *Client {
	if principal != "" {
		address = ""
	}
	key := [2]string{principal, address}
	if c[key] == nil {
		c[key] = &Client{Principal: principal, Address: address, Methods: make(map[string]int)}
	}
	return c[key]
}

// Clients implements Source. The last minute is the one that is over and what there is of the present one.
func (d *Deployment) Clients(ctx context.Context) (Clients, error) {
	now := time.Now().Unix() / 60
	times := make([]time.Time, minutesShown)
	for i := range times {
		times[i] = time.Unix((now-int64(i))*60, 0)
	}
	notes, err := d.o.Store.Notes(ctx, times)
	if err != nil {
		return Clients{}, err
	}
	out, all := Clients{Clients: []Client{}}, clients{}
	for i, byReplica := range notes {
		for _, note := range byReplica {
			var minute map[string]metrics.Counts
			_ = json.Unmarshal(note, &minute) // a note of another release may be empty to it
			for _, counts := range minute {
				out.addSent(all, counts.Sent, i <= 1)
			}
		}
	}
	replicas, err := d.readReports(ctx)
	if err != nil {
		return Clients{}, err
	}
	for _, r := range replicas {
		for _, h := range r.Held {
			if r.Alive {
				all.of(h.Principal, h.Address).Holdings.add(h.Holdings)
			}
		}
	}
	for _, one := range all {
		out.Clients = append(out.Clients, *one)
	}
	slices.SortFunc(out.Clients, func(a, b Client) int {
		return cmp.Or(cmp.Compare(b.LastMinute, a.LastMinute), cmp.Compare(b.LastHour, a.LastHour), cmp.Compare(b.sum(), a.sum()),
			cmp.Compare(a.Principal, b.Principal), cmp.Compare(a.Address, b.Address))
	})
	out.Clients = out.Clients[:min(len(out.Clients), mostClients)]
	return out, nil
}

// addSent adds the requests of one minute and replica.
func (c *Clients) addSent(all clients, sent map[metrics.Sent]int, recent bool) {
	for kind, n := range sent {
		if kind.Caller == (metrics.Caller{}) {
			if recent {
				c.Others += n
			}
			continue
		}
		one := all.of(kind.Principal, kind.Address)
		one.LastHour += n
		one.Methods[kind.Method] += n
		if recent {
			one.LastMinute += n
		}
		if kind.Client != "" && len(one.Names) < mostNames && !slices.Contains(one.Names, kind.Client) {
			one.Names = append(one.Names, kind.Client)
			slices.Sort(one.Names)
		}
	}
}
