package operator

import (
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"taskgate/shim"
)

// The limits of a page of tasks.
const (
	defaultLimit = 100
	maxLimit     = 500
)

// queryOf reads the parameters of /tasks. An unknown parameter is a mistake: a filter with a slip in its name
// would otherwise show everything.
func queryOf(v url.Values, now time.Time) (shim.Query, error) {
	q := shim.Query{
		Upstream: v.Get("upstream"), Tool: v.Get("tool"), Replica: shim.Replica(v.Get("replica")),
		Prefix: strings.ToLower(v.Get("id")), Oldest: v.Get("order") == "oldest",
		Limit: defaultLimit, Cursor: v.Get("cursor"),
	}
	for _, status := range v["status"] {
		q.States = append(q.States, shim.State(status))
	}
	if v.Has("principal") {
		p := v.Get("principal")
		q.Owner = &p
	}
	if err := checkParams(v); err != nil {
		return shim.Query{}, err
	}
	for name, at := range map[string]*time.Time{"older_than": &q.Before, "newer_than": &q.After, "ended_within": &q.EndedAfter} {
		if !v.Has(name) {
			continue
		}
		age, err := time.ParseDuration(v.Get(name))
		if err != nil || age < 0 {
			return shim.Query{}, fmt.Errorf("%s is a duration such as 90s or 2h30m", name)
		}
		*at = now.Add(-age)
	}
	if v.Has("limit") {
		n, err := strconv.Atoi(v.Get("limit"))
		if err != nil || n < 1 || n > maxLimit {
			return shim.Query{}, fmt.Errorf("limit is a number from 1 to %d", maxLimit)
		}
		q.Limit = n
	}
	return q, nil
}

// checkParams checks the parameters of /tasks against the known ones.
func checkParams(v url.Values) error {
	for name, values := range v {
		i := slices.IndexFunc(taskParams, func(p param) bool { return p.name == name })
		if i < 0 {
			return fmt.Errorf("there is no parameter %q", name)
		}
		p := taskParams[i]
		if len(values) > 1 && !p.repeats {
			return fmt.Errorf("%s is given once", name)
		}
		for _, value := range values {
			if len(p.enum) == 0 || slices.Contains(p.enum, value) {
				continue
			}
			return fmt.Errorf("%s is one of %s", name, strings.Join(p.enum, ", "))
		}
	}
	return nil
}
