package main

import (
	"cmp"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
)

// pageName is the page for people. Each of its tables follows a line that names where its keys are, such as
// "<!-- keys of auth, upstreams.auth -->". A row has a key, or "tls.cert_file" for one in a mapping, and in its last cell
// who changes it. The cells between come from the schema.
const pageName = root + "/docs/configuration.md"

const tableHead = "| key | type | default | what it does | who changes it, and when |\n|---|---|---|---|---|\n"

var (
	// keyTable is a table of the page: where its keys are, and its rows.
	keyTable = regexp.MustCompile(`(?m)^<!-- keys of (.*) -->\n\n\|.*\n\|[-|]+\n((?:\|.*\n)+)`)
	// keyRow is a row, complete or not: its key, and its last cell.
	keyRow = regexp.MustCompile("^\\| `([a-z_.]+)` \\|(?:.* \\|)? (.*) \\|$")
	// clauseEnd is where the first clause of a description ends.
	clauseEnd = regexp.MustCompile(`[.:;](\s|$)`)
)

// wholeFile is where the keys at the top of a file are.
const wholeFile = "the file"

// completePage returns the page with all rows complete. A key that has no row, nor a mapping around it, is an error.
func completePage(schema object) ([]byte, error) {
	text, err := os.ReadFile(pageName)
	if err != nil {
		return nil, err
	}
	rows, wrong := map[string]bool{}, []string{}
	done := keyTable.ReplaceAllStringFunc(string(text), func(table string) string {
		m := keyTable.FindStringSubmatch(table)
		places := strings.Split(m[1], ", ")
		var b strings.Builder
		fmt.Fprintf(&b, "<!-- keys of %s -->\n\n%s", m[1], tableHead)
		for line := range strings.Lines(m[2]) {
			key := keyRow.FindStringSubmatch(strings.TrimSpace(line))
			row := ""
			for _, place := range slices.Backward(places) {
				if path := joinPath(place, key); path != "" {
					found := schema.describeKey(path, key[1], key[2])
					row, rows[path] = cmp.Or(found, row), found != ""
				}
			}
			if row == "" {
				wrong = append(wrong, "no key of "+m[1]+": "+strings.TrimSpace(line))
			}
			b.WriteString(row)
		}
		for _, place := range places {
			rows[strings.TrimPrefix(place, wholeFile)] = true
		}
		return b.String()
	})
	for _, path := range schema.keysWithoutRow("", rows) {
		wrong = append(wrong, "no row for "+path+": | `KEY` | who changes it, and when |")
	}
	if len(wrong) > 0 {
		return nil, fmt.Errorf("%s:\n%s", pageName, strings.Join(wrong, "\n"))
	}
	return []byte(done), nil
}

// joinPath is the path of a row's key; "" for a line that is no row.
func joinPath(place string, row []string) string {
	if row == nil {
		return ""
	}
	return strings.TrimPrefix(strings.TrimPrefix(place, wholeFile)+"."+row[1], ".")
}

// describeKey is the row of the key at a path; "" if there is none.
func (o object) describeKey(path, key, who string) string {
	names := strings.Split(path, ".")
	required := false
	for _, name := range names {
		required = slices.Contains(o.entrySchema().textsOf("required"), name)
		next := o.entrySchema().objectOf("properties").objectOf(name)
		if next == nil {
			return ""
		}
		o = next
	}
	what, _ := o.valueOf("description").(string)
	what = strings.TrimPrefix(what, names[len(names)-1]+" ")
	for _, verb := range []string{"is ", "are "} {
		what = strings.TrimPrefix(what, verb)
	}
	if end := clauseEnd.FindStringIndex(what); end != nil {
		what = what[:end[0]]
	}
	return fmt.Sprintf("| `%s` | %s | %s | %s | %s |\n", key, o.namesOfType(), o.defaultText(required), strings.ReplaceAll(what, "<", `\<`), who)
}

// keysWithoutRow are the paths of keys below a path that have no row, and are in no mapping that has one.
func (o object) keysWithoutRow(at string, rows map[string]bool) (paths []string) {
	for _, m := range o.entrySchema().objectOf("properties") {
		path, in := strings.TrimPrefix(at+"."+m.name, "."), m.value.(object)
		switch below := in.entrySchema().objectOf("properties"); {
		case !rows[path] && len(below) == 0:
			paths = append(paths, path)
		case !rows[path], slices.Contains(places, path):
			paths = append(paths, in.keysWithoutRow(path, rows)...)
		}
	}
	return paths
}

// places are the mappings and lists whose keys have tables of their own.
var places = []string{"auth", "upstreams", "upstreams.auth", "upstreams.defaults", "upstreams.tools"}

// namesOfType says what may be written for a key.
func (o object) namesOfType() string {
	var words []string
	if forms, ok := o.valueOf("anyOf").([]object); ok {
		for _, w := range forms[0].textsOf("enum") {
			words = append(words, "`"+w+"`")
		}
		switch forms[0].valueOf("type") {
		case "string":
			words = append(words, "text")
		case "boolean":
			words = append(words, "`true`", "`false`")
		}
		o = forms[1]
	}
	pattern, _ := o.valueOf("pattern").(string)
	switch {
	case strings.HasPrefix(pattern, "^auto$|"+durationForm):
		words = append(words, "`auto`", "duration")
	case strings.HasPrefix(pattern, durationForm):
		words = append(words, "duration")
	case strings.HasPrefix(pattern, sizeForm):
		words = append(words, "size")
	case strings.HasPrefix(pattern, numberForm):
		words = append(words, "number")
	case o.valueOf("items") != nil:
		words = append(words, "list")
	case o.objectOf("properties") != nil:
		var keys []string
		for _, m := range o.objectOf("properties") {
			keys = append(keys, "`"+m.name+"`")
		}
		words = append(words, "mapping of "+strings.Join(keys, ", "))
	case o.valueOf("additionalProperties") != nil:
		words = append(words, "mapping")
	case len(words) == 0:
		words = append(words, "text")
	}
	return strings.Join(words, ", ")
}

// defaultText is the default of a key.
func (o object) defaultText(required bool) string {
	switch d := o.valueOf("default").(type) {
	case string:
		return "`" + d + "`"
	case int:
		return fmt.Sprint(d)
	}
	if required {
		return "required"
	}
	return "–"
}

// entrySchema is what describes the entries of a list, or the object itself.
func (o object) entrySchema() object {
	if items := o.objectOf("items"); items != nil {
		return items
	}
	return o
}

func (o object) valueOf(name string) any {
	for _, m := range o {
		if m.name == name {
			return m.value
		}
	}
	return nil
}

func (o object) objectOf(name string) object {
	in, _ := o.valueOf(name).(object)
	return in
}

func (o object) textsOf(name string) []string {
	list, _ := o.valueOf(name).([]string)
	return list
}
