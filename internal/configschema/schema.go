package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"taskgate/gateway/config"
)

// Any value may hold a variable instead of what belongs there, so every
// pattern admits text with one.
const variable = `\$\{`

// The forms that durations, sizes and numbers are written in.
const (
	durationForm = `^(0|(([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|ms|s|m|h))+)$`
	sizeForm     = `^[0-9]+(KiB|MiB|GiB)?$`
	numberForm   = `^[0-9]+$`
)

// configSchema returns the schema of a whole file.
func configSchema(d docs) (object, error) {
	g := generator{docs: d}
	body := g.structure(reflect.ValueOf(config.Default()).Elem())
	schema := object{
		{"$schema", "https://json-schema.org/draft/2020-12/schema"},
		{"title", "taskgate configuration"},
		{"type", "object"},
	}
	schema = append(schema, body...)
	schema = append(schema, member{"required", []string{"upstreams"}})
	return schema, g.err
}

// generator walks the structs; err is the first thing it could not describe.
type generator struct {
	docs docs
	err  error
}

// structure returns the keywords for the keys of a struct; v holds the
// defaults.
func (g *generator) structure(v reflect.Value) object {
	properties, required := g.properties(v, true)
	out := object{{"additionalProperties", false}, {"properties", properties}}
	if len(required) > 0 {
		out = append(out, member{"required", required})
	}
	return out
}

// properties describes the keys of a struct, those of inlined structs
// included. Keys of inlined structs have no default of their own: in a rule
// they fall back to the upstream's defaults.
func (g *generator) properties(v reflect.Value, defaults bool) (properties object, required []string) {
	for i := range v.NumField() {
		f := v.Type().Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		if name == "-" {
			continue // no key
		}
		if options == "inline" {
			inner, _ := g.properties(v.Field(i), false)
			properties = append(properties, inner...)
			continue
		}
		if f.Tag.Get("required") != "" {
			required = append(required, name)
		}
		description := g.docs.description(v.Type().Name(), f.Name, name)
		if description == "" && g.err == nil {
			g.err = fmt.Errorf("%s.%s has no doc comment", v.Type().Name(), f.Name)
		}
		property := append(object{{"description", description}}, g.value(f, v.Field(i))...)
		if defaults {
			property = append(property, defaultOf(v.Field(i))...)
		}
		properties = append(properties, member{name, property})
	}
	return properties, required
}

// value describes what may be written for a field.
func (g *generator) value(f reflect.StructField, v reflect.Value) object {
	if o, ok := scalar(f, v); ok {
		return o
	}
	switch f.Type.Kind() {
	case reflect.String:
		o := object{{"type", "string"}}
		if p := f.Tag.Get("pattern"); p != "" {
			o = append(o, member{"pattern", p + "|" + variable})
		}
		return o
	case reflect.Slice:
		if words := config.ListWords(f.Tag); len(words) > 0 {
			return object{{"anyOf", []object{{{"enum", slices.Sorted(maps.Keys(words))}}, g.list(f.Type.Elem())}}}
		}
		return g.list(f.Type.Elem())
	case reflect.Map:
		o := object{{"type", nullable("object")}, {"additionalProperties", object{{"type", "string"}}}}
		if words := config.ListWords(f.Tag); len(words) > 0 {
			return object{{"anyOf", []object{{{"enum", slices.Sorted(maps.Keys(words))}}, o}}}
		}
		return o
	case reflect.Pointer:
		return append(object{{"type", "object"}}, g.structure(config.NewValue(f.Type.Elem()))...)
	default:
		o := append(object{{"type", nullable("object")}}, g.structure(v)...)
		if f.Tag.Get("alone") != "" {
			return object{{"anyOf", []object{{{"type", "string"}}, o}}}
		}
		return o
	}
}

// scalar describes the types that have a form of their own.
func scalar(f reflect.StructField, v reflect.Value) (object, bool) {
	switch x := v.Interface().(type) {
	case config.Truth:
		return object{{"anyOf", []object{{{"type", "boolean"}}, {{"type", "string"}, {"pattern", variable}}}}}, true
	case interface{ Values() []string }:
		return object{{"anyOf", []object{
			{{"enum", x.Values()}},
			{{"type", "string"}, {"pattern", variable}},
		}}}, true
	case time.Duration:
		form := durationForm + "|" + variable
		if f.Tag.Get("auto") != "" {
			form = "^auto$|" + form
		}
		// The number 0 is the one duration that needs no unit.
		return object{
			{"type", []string{"string", "integer"}}, {"pattern", form},
			{"minimum", 0}, {"maximum", 0},
		}, true
	case config.JSON:
		return object{{"type", nullable("object")}}, true
	case config.Size:
		return append(object{{"type", []string{"integer", "string"}}, {"pattern", sizeForm + "|" + variable}}, bounds(f)...), true
	case int:
		return append(object{{"type", []string{"integer", "string"}}, {"pattern", numberForm + "|" + variable}}, bounds(f)...), true
	}
	return nil, false
}

// bounds returns the limits of a number. They hold for values written as
// numbers; what is written as text is left to the program.
func bounds(f reflect.StructField) (o object) {
	for _, b := range []struct{ tag, keyword string }{{"min", "minimum"}, {"max", "maximum"}} {
		var n config.Size
		if text, ok := f.Tag.Lookup(b.tag); ok && n.UnmarshalText([]byte(text)) == nil {
			o = append(o, member{b.keyword, int64(n)})
		}
	}
	return o
}

// list describes a list; entries of struct type bring their own defaults.
func (g *generator) list(elem reflect.Type) object {
	items := object{{"type", "string"}}
	if elem.Kind() == reflect.Pointer {
		elem = elem.Elem()
	}
	switch {
	case elem.Kind() == reflect.Struct:
		items = append(object{{"type", "object"}}, g.structure(config.NewValue(elem))...)
		if elem == reflect.TypeFor[config.Upstream]() {
			items = append(items, member{"oneOf", []object{{{"required", []string{"url"}}}, {{"required", []string{"command"}}}}})
		}
	case elem == reflect.TypeFor[config.JSON]():
		items = object{}
	case elem == reflect.TypeFor[config.BearerKey]():
		items = append(items, member{"pattern", config.BearerKeyForm + "|" + variable})
	case elem.Kind() != reflect.String:
		g.err = fmt.Errorf("no description for a list of %s", elem)
	}
	return object{{"type", nullable("array")}, {"items", items}}
}

// nullable admits a list or a mapping whose entries are all commented out.
func nullable(kind string) []string { return []string{kind, "null"} }

// defaultOf returns the default keyword, or nothing where there is no default
// or the parts of the value have their own.
func defaultOf(v reflect.Value) object {
	switch x := v.Interface().(type) {
	case time.Duration:
		if x == config.Auto {
			return object{{"default", "auto"}}
		}
		return object{{"default", shortDuration(x)}}
	case config.Size:
		return object{{"default", x.String()}}
	case int:
		return object{{"default", x}}
	}
	switch {
	case v.Kind() == reflect.String && v.Len() > 0:
		return object{{"default", v.String()}}
	case v.Kind() == reflect.Slice && v.Type().Elem().Kind() == reflect.String:
		return object{{"default", []string{}}}
	}
	return nil
}

// shortDuration drops the zero units that time.Duration writes.
func shortDuration(d time.Duration) string {
	s := d.String()
	for _, zero := range []string{"m0s", "h0m"} {
		if strings.HasSuffix(s, zero) {
			s = s[:len(s)-2]
		}
	}
	return s
}

// object is a JSON object that keeps the order of its members.
type object []member

// member is one name and value of an object.
type member struct {
	name  string
	value any
}

// MarshalJSON writes the members in their order.
func (o object) MarshalJSON() ([]byte, error) {
	var b strings.Builder
	b.WriteByte('{')
	for i, m := range o {
		if i > 0 {
			b.WriteByte(',')
		}
		value, err := marshal(m.value)
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(&b, "%q:%s", m.name, value)
	}
	b.WriteByte('}')
	return []byte(b.String()), nil
}

// marshal is json.Marshal without its escapes for HTML.
func marshal(v any) ([]byte, error) {
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	err := enc.Encode(v)
	return []byte(b.String()), err
}
