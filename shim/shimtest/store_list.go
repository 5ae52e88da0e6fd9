package shimtest

import (
	"fmt"
	"slices"

	"taskgate/shim"
)

// pages reads a list page by page, at most n tasks each.
func (t *storeTest) pages(key string, n int) [][]shim.Task {
	t.Helper()
	var out [][]shim.Task
	for cursor := ""; ; {
		page, next, err := t.b.List(t.ctx, key, cursor, n)
		t.ok(err)
		out = append(out, page)
		if cursor = next; cursor == "" {
			return out
		}
	}
}

func ids(tasks []shim.Task) (out []shim.ID) {
	for _, k := range tasks {
		out = append(out, k.ID)
	}
	return out
}

var listCases = []storeCase{
	{"List/oldest first, in pages", func(t *storeTest) {
		var want []shim.Task
		for range 40 {
			want = append(want, t.create(nil))
		}
		for _, n := range []int{1, 7, 20, 39, 40, 41, 1000} {
			pages := t.pages(listKey, n)
			all := slices.Concat(pages...)
			if len(pages) != (40+n-1)/n || len(all) != 40 {
				t.Fatalf("%d tasks on %d pages of %d", len(all), len(pages), n)
			}
			// Within a ms the order is open.
			if !slices.IsSortedFunc(all, func(a, b shim.Task) int { return a.CreatedAt.Compare(b.CreatedAt) }) {
				t.Error("not the oldest first")
			}
			byID := func(a, b shim.Task) int { return cmpID(a.ID, b.ID) }
			t.same(slices.SortedFunc(slices.Values(want), byID), slices.SortedFunc(slices.Values(all), byID))
		}
	}},
	{"List/nothing", func(t *storeTest) {
		t.create(func(k *shim.Task) { k.ListKey = "" })
		for _, key := range []string{"p:nobody", ""} {
			t.same([][]shim.Task{nil}, t.pages(key, 10))
		}
	}},
	{"List/only what its key and its visibility allow", func(t *storeTest) {
		mine := t.create(nil)
		t.create(func(k *shim.Task) { k.ListKey = "p:bob" })
		t.create(func(k *shim.Task) { k.ListKey = "" })
		hidden := t.create(func(k *shim.Task) { k.Visible = false })
		t.same([]shim.ID{mine.ID}, ids(t.pages(listKey, 10)[0]))
		shown := t.apply(hidden, shim.Change{Visible: true})
		t.same([]shim.Task{t.get(mine.ID, shim.Summary), shown}, t.pages(listKey, 10)[0])
	}},
	{"List/a last page is known to be the last", func(t *storeTest) {
		for range 4 {
			t.create(nil)
		}
		for range 40 { // nothing of these is shown
			t.create(func(k *shim.Task) { k.Visible = false })
		}
		t.same([]int{2, 2}, sizes(t.pages(listKey, 2)))
		t.same([]int{4}, sizes(t.pages(listKey, 4)))
	}},
	{"List/a cursor outlives its task", func(t *storeTest) {
		for range 6 {
			t.create(nil)
		}
		first, cursor, err := t.a.List(t.ctx, listKey, "", 2)
		t.ok(err)
		// What the cursor points at goes, and others come.
		for _, k := range first {
			t.anyone(k, shim.Change{Op: "x", To: shim.Cancelled, Retain: 1})
		}
		t.gone(first[0].ID)
		t.gone(first[1].ID)
		t.create(nil)
		rest, cursor, err := t.b.List(t.ctx, listKey, cursor, 10)
		t.ok(err)
		t.same("", cursor)
		t.same(5, len(rest))
		for _, k := range rest {
			if slices.Contains(ids(first), k.ID) {
				t.Errorf("%s was shown twice", k.ID)
			}
		}
	}},
	{"List/bad cursors", func(t *storeTest) {
		t.create(nil)
		for _, c := range []string{"x", "!", "MQ", "MTIz", "\x00", "LTEgeA", "AAAAAAAAAAAAAAAA"} {
			_, _, err := t.a.List(t.ctx, listKey, c, 10)
			t.is(err, shim.ErrCursor)
		}
	}},
	{"List/many keys", func(t *storeTest) {
		for i := range 10 {
			key := fmt.Sprintf("s:%d", i)
			task := t.create(func(k *shim.Task) { k.ListKey = key })
			t.same([]shim.Task{task}, t.pages(key, 5)[0])
		}
	}},
}

func cmpID(a, b shim.ID) int {
	if a < b {
		return -1
	}
	return 1
}

func sizes(pages [][]shim.Task) (out []int) {
	for _, p := range pages {
		out = append(out, len(p))
	}
	return out
}
