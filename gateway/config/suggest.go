package config

import (
	"fmt"
	"reflect"
	"strings"
)

// unknownKey says that a struct has no such key, and adds which key was meant, where the key belongs, or which keys
// there are. It also returns the key that was meant.
func unknownKey(name string, t reflect.Type) (message, meant string) {
	message = fmt.Sprintf("unknown key %q", clipText(name))
	var known []string
	for _, k := range keysOf(t) {
		known = append(known, k.name)
	}
	if meant = nearestWord(name, known); meant != "" {
		return message + DidYouMean(name, known), meant
	}
	if homes := homesOf(name, "", reflect.TypeFor[Config]()); len(homes) > 0 {
		return message + " here (it belongs " + strings.Join(homes, " or ") + ")", ""
	}
	return message + " (known here: " + strings.Join(known, ", ") + ")", ""
}

// homesOf lists the places that take a key of that name.
func homesOf(name, path string, t reflect.Type) []string {
	var homes []string
	for _, k := range keysOf(t) {
		if k.name == name {
			homes = append(homes, home(path))
		}
		inner, at := t.FieldByIndex(k.index).Type, joinKey(path, k.name)
		for inner.Kind() == reflect.Slice || inner.Kind() == reflect.Pointer {
			if inner.Kind() == reflect.Slice {
				at += "[]"
			}
			inner = inner.Elem()
		}
		if inner.Kind() == reflect.Struct {
			homes = append(homes, homesOf(name, at, inner)...)
		}
	}
	return homes
}

func home(path string) string {
	if path == "" {
		return "at the top level"
	}
	return "under " + path
}

// DidYouMean returns a hint at the nearest of the known words; "" if none is near.
func DidYouMean(word string, known []string) string {
	if best := nearestWord(word, known); best != "" {
		return fmt.Sprintf(" (did you mean %q?)", best)
	}
	return ""
}

// nearestWord returns the known word with the fewest differences; "" if more than a third of the
// letters differ.
func nearestWord(word string, known []string) (best string) {
	word = plainKey(word)
	limit := max(len(word), 3) / 3
	for _, k := range known {
		if d := editDistance(word, plainKey(k)); d <= limit {
			best, limit = k, d-1
		}
	}
	return best
}

// plainKey drops the differences between maxBody, max-body and max_body.
func plainKey(s string) string {
	return strings.NewReplacer("_", "", "-", "").Replace(strings.ToLower(clipText(s)))
}

// editDistance is the number of characters to insert, delete, replace or swap with their neighbour
// to get from a to b.
func editDistance(a, b string) int {
	rows := make([][]int, len(a)+1)
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		rows[i][0] = i
	}
	for j := range rows[0] {
		rows[0][j] = j
	}
	for i := 1; i <= len(a); i++ {
		for j := 1; j <= len(b); j++ {
			d := rows[i-1][j-1]
			if a[i-1] != b[j-1] {
				d++
			}
			d = min(d, rows[i-1][j]+1, rows[i][j-1]+1)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				d = min(d, rows[i-2][j-2]+1)
			}
			rows[i][j] = d
		}
	}
	return rows[len(a)][len(b)]
}
