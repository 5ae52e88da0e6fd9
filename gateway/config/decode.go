package config

import (
	"encoding"
	"fmt"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"
)

// decoder fills a Config from a YAML tree. The YAML package could do that, but its messages speak
// of Go types, it knows neither variables nor near misses, and it loses the positions of values,
// which semantic checks need.
type decoder struct {
	*source
	env    lookup
	values int // of JSON, so far
}

// seeder is a type whose values begin with defaults of their own; parent points to the struct that
// holds the list they are in.
type seeder interface{ seed(parent any) }

// seedValue gives a value the defaults of its type.
func seedValue(v reflect.Value, parent any) {
	if s, ok := v.Addr().Interface().(seeder); ok {
		s.seed(parent)
	}
}

// NewValue returns a value of a type of the configuration as it is before any of its keys is read.
func NewValue(t reflect.Type) reflect.Value {
	v := reflect.New(t).Elem()
	seedValue(v, nil)
	return v
}

// enum is a type with a fixed set of values.
type enum interface{ Values() []string }

// decodeValue decodes one node into v; a wrong node leaves v as it is.
func (d *decoder) decodeValue(n *yaml.Node, path string, v reflect.Value, parent any) {
	n = resolveAlias(n)
	switch {
	case v.Kind() == reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		d.decodeValue(n, path, v.Elem(), parent)
	case v.Type() == reflect.TypeFor[JSON]():
		v.SetString(string(d.decodeJSON(n, path)))
	case isScalar(v.Type()):
		d.decodeScalar(n, path, v)
	case isNull(n):
		// A list or mapping whose entries are all commented out.
		seedValue(v, parent)
	case v.Kind() == reflect.Slice:
		d.decodeList(n, path, v, parent)
	case v.Kind() == reflect.Map:
		d.decodeDictionary(n, path, v)
	default:
		d.decodeMapping(n, path, v, parent)
	}
}

// decodeMapping decodes into a struct. It fills fields in the order of the struct, because entries
// of tools begin as copies of defaults.
func (d *decoder) decodeMapping(n *yaml.Node, path string, v reflect.Value, parent any) {
	if n.Kind != yaml.MappingNode {
		d.addAt(n, path, "expected keys, found "+describeNode(n))
		return
	}
	seedValue(v, parent)
	entries := d.readEntries(n)
	keys := keysOf(v.Type())
	for _, k := range keys {
		if e, ok := entries[k.name]; ok {
			at := joinKey(path, k.name)
			d.at[at] = e
			word := resolveAlias(e.value).Value
			list, isWord := ListWords(k.tag)[word]
			if field := v.FieldByIndex(k.index); k.tag.Get("auto") != "" && word == "auto" {
				field.SetInt(int64(Auto))
			} else if alone := k.tag.Get("alone"); alone != "" && resolveAlias(e.value).Kind == yaml.ScalarNode {
				d.decodeScalar(resolveAlias(e.value), at, field.FieldByName(alone)) // a text in place of keys
			} else if isWord && word != "" {
				field.Set(meaningOf(field.Type(), word, list))
			} else {
				d.decodeValue(e.value, at, field, v.Addr().Interface())
			}
			delete(entries, k.name)
		}
	}
	for name, e := range entries {
		message, meant := unknownKey(name, v.Type())
		d.addAt(e.key, joinKey(path, name), message)
		if meant != "" {
			d.bad[joinKey(path, meant)] = true // it is misspelt, not missing
		}
	}
}

// meaningOf is what a word stands for in place of a list or a mapping.
func meaningOf(t reflect.Type, word string, list []string) reflect.Value {
	if t.Kind() == reflect.Map {
		return reflect.ValueOf(map[string]string{nameless: word})
	}
	return reflect.ValueOf(list)
}

// nameless is the name in a mapping for a word that stands for all of it: nothing else has that name.
const nameless = ""

// ListWords are the words that may stand for a list or a mapping under a key, with the list that each means. The tag of
// the field has them: "word=entry entry,word=".
func ListWords(tag reflect.StructTag) map[string][]string {
	words := map[string][]string{}
	for one := range strings.SplitSeq(tag.Get("words"), ",") {
		if word, entries, ok := strings.Cut(one, "="); ok {
			words[word] = strings.Fields(entries)
		}
	}
	return words
}

// readEntries returns the keys of a mapping with those it merges in (<<), and reports keys that are
// repeated or not plain text.
func (d *decoder) readEntries(n *yaml.Node) map[string]place {
	found := map[string]place{}
	var merged []*yaml.Node
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := n.Content[i], n.Content[i+1]
		switch before, twice := found[k.Value]; {
		case k.Tag == "!!merge":
			merged = append(merged, v)
		case k.Kind != yaml.ScalarNode:
			d.addAt(k, "", "a key must be plain text, found "+describeNode(k))
		case twice:
			// Without a path the first one may still be judged.
			d.addAt(k, "", fmt.Sprintf("key %q is already given on line %d", clipText(k.Value), before.key.Line))
		default:
			found[k.Value] = place{k, v}
			d.noteScalar(k, "")
		}
	}
	d.mergeKeys(found, merged, map[*yaml.Node]bool{n: true})
	return found
}

// mergeKeys adds the missing keys of merged mappings. Each mapping counts once, also in a circle of
// references.
func (d *decoder) mergeKeys(into map[string]place, from []*yaml.Node, seen map[*yaml.Node]bool) {
	for _, n := range from {
		n = resolveAlias(n)
		if seen[n] {
			continue
		}
		seen[n] = true
		switch n.Kind {
		case yaml.SequenceNode:
			d.mergeKeys(into, n.Content, seen)
		case yaml.MappingNode:
			var deeper []*yaml.Node
			for i := 0; i+1 < len(n.Content); i += 2 {
				k, v := n.Content[i], n.Content[i+1]
				if k.Tag == "!!merge" {
					deeper = append(deeper, v)
				} else if _, ok := into[k.Value]; !ok && k.Kind == yaml.ScalarNode {
					into[k.Value] = place{k, v}
				}
			}
			d.mergeKeys(into, deeper, seen)
		default:
			d.addAt(n, "", "<< merges the keys of a mapping, found "+describeNode(n))
		}
	}
}

// decodeList decodes into a slice.
func (d *decoder) decodeList(n *yaml.Node, path string, v reflect.Value, parent any) {
	if n.Kind != yaml.SequenceNode {
		d.addAt(n, path, "expected a list, found "+describeNode(n))
		return
	}
	out := reflect.MakeSlice(v.Type(), len(n.Content), len(n.Content))
	for i, entry := range n.Content {
		at := path + "[" + strconv.Itoa(i) + "]"
		d.at[at] = place{value: entry}
		if isNull(resolveAlias(entry)) && !isScalar(v.Type().Elem()) {
			d.addAt(entry, at, "an entry of this list is empty")
		}
		d.decodeValue(entry, at, out.Index(i), parent)
	}
	v.Set(out)
}

// decodeDictionary decodes into a map from text to text.
func (d *decoder) decodeDictionary(n *yaml.Node, path string, v reflect.Value) {
	if n.Kind != yaml.MappingNode {
		d.addAt(n, path, "expected names and values, found "+describeNode(n))
		return
	}
	out := reflect.MakeMap(v.Type())
	for name, e := range d.readEntries(n) {
		at := joinKey(path, name)
		d.at[at] = e
		one := reflect.New(v.Type().Elem()).Elem()
		d.decodeValue(e.value, at, one, nil)
		out.SetMapIndex(reflect.ValueOf(name), one)
	}
	v.Set(out)
}

// decodeScalar decodes a single value after replacing its variables.
func (d *decoder) decodeScalar(n *yaml.Node, path string, v reflect.Value) {
	d.noteScalar(n, path)
	switch {
	case n.Kind != yaml.ScalarNode:
		d.addAt(n, path, "expected "+describeWanted(v.Type())+", found "+describeNode(n))
		return
	case isNull(n):
		d.addAt(n, path, "no value given; expected "+describeWanted(v.Type()))
		return
	}
	text, mistakes := expandValue(n.Value, d.env, filepath.Dir(d.name))
	for _, m := range mistakes {
		d.addAt(n, path, m)
	}
	if len(mistakes) > 0 {
		return
	}
	if mistake := setText(v, text); mistake != "" {
		// The value of a variable may be a secret in the wrong place, so only the text of the file
		// is shown.
		d.addAt(n, path, strconv.Quote(clipText(n.Value))+" is "+mistake)
	}
}

// setText parses the text as v's type. The mistake completes "… is".
func setText(v reflect.Value, text string) (mistake string) {
	switch p := v.Addr().Interface().(type) {
	case *time.Duration:
		dur, err := time.ParseDuration(text)
		if err != nil {
			return "not a duration: write a number with a unit, such as 300ms, 5s or 1h30m"
		}
		*p = dur
	case encoding.TextUnmarshaler:
		if err := p.UnmarshalText([]byte(text)); err != nil {
			return err.Error()
		}
	case *int:
		i, err := strconv.Atoi(text)
		if err != nil {
			return "not a whole number"
		}
		*p = i
	case enum:
		if !slices.Contains(p.Values(), text) {
			return "none of " + strings.Join(p.Values(), ", ") + DidYouMean(text, p.Values())
		}
		v.SetString(text)
	default:
		v.SetString(text)
	}
	return ""
}

// describeWanted says what belongs into a value of the type.
func describeWanted(t reflect.Type) string {
	switch p := reflect.New(t).Interface().(type) {
	case *time.Duration:
		return "a duration such as 5s"
	case *Size:
		return "a size such as 4MiB"
	case *int:
		return "a whole number"
	case *BearerKey:
		return "a key as PRINCIPAL:HASH"
	case *StateKey:
		return "a key alone, or ${file:PATH}"
	case enum:
		return "one of " + strings.Join(p.Values(), ", ")
	}
	return "text"
}
