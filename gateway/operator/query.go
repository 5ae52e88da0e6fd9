package operator

import (
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The limits of a page of tasks.
const (
	defaultLimit = 100
	maxLimit     = 500
)

// queryOf reads the parameters of /tasks. A parameter that there is not is a mistake: a filter with a slip in its name
// would otherwise show everything.
func queryOf(v url.Values, now time.Time) (Query, error) {
	q := Query{
		Upstream: v.Get("upstream"), Tool: v.Get("tool"), Statuses: v["status"], Replica: v.Get("replica"),
		ID: strings.ToLower(v.Get("id")), Unknown: v.Has("outcome"), Oldest: v.Get("order") == "oldest",
		Limit: defaultLimit, Cursor: v.Get("cursor"),
	}
	if v.Has("principal") {
		p := v.Get("principal")
		q.Principal = &p
	}
	if err := checkParams(v); err != nil {
		return Query{}, err
	}
	for name, at := range map[string]*time.Time{"older_than": &q.Before, "newer_than": &q.After} {
		if !v.Has(name) {
			continue
		}
		age, err := time.ParseDuration(v.Get(name))
		if err != nil || age < 0 {
			return Query{}, fmt.Errorf("%s is a duration such as 90s or 2h30m", name)
		}
		*at = now.Add(-age)
	}
	if v.Has("limit") {
		n, err := strconv.Atoi(v.Get("limit"))
		if err != nil || n < 1 || n > maxLimit {
			return Query{}, fmt.Errorf("limit is a number from 1 to %d", maxLimit)
		}
		q.Limit = n
	}
	return q, nil
}

// checkParams compares the parameters of /tasks with those that there are.
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
			if len(p.enum) > 0 && !slices.Contains(p.enum, value) {
				return fmt.Errorf("%s is one of %s", name, strings.Join(p.enum, ", "))
			}
		}
	}
	return nil
}
