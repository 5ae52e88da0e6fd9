package config

import (
	"reflect"
	"regexp"
	"slices"
	"strings"
)

// fields checks each key of a struct against its tags (min, max, pattern,
// required) and its type. Lists and the structs of lists are left to others.
func (p *problems) fields(at string, structure any) {
	v := reflect.ValueOf(structure).Elem()
	for _, k := range keysOf(v.Type()) {
		f := v.FieldByIndex(k.index)
		switch {
		case isScalar(f.Type()):
			p.field(join(at, k.name), k, f)
		case f.Kind() == reflect.Struct && f.Type() != reflect.TypeFor[Tool]():
			p.fields(join(at, k.name), f.Addr().Interface())
		}
	}
}

// rule checks the keys of a rule that differ from the defaults.
func (p *problems) rule(at string, r *Rule, defaults Tool) {
	v, same := reflect.ValueOf(r).Elem(), reflect.ValueOf(&Rule{Tool: defaults}).Elem()
	for _, k := range keysOf(v.Type()) {
		f := v.FieldByIndex(k.index)
		if k.name == "match" || !f.Equal(same.FieldByIndex(k.index)) {
			p.field(join(at, k.name), k, f)
		}
	}
}

// field checks one scalar.
func (p *problems) field(at string, k key, f reflect.Value) {
	if f.Kind() == reflect.String {
		p.text(at, k, f)
		return
	}
	if k.tag.Get("auto") != "" && f.Int() == int64(Auto) {
		return
	}
	if least, ok := bound(k.tag, "min", f.Type()); ok && f.Int() < least.Int() {
		p.add(at, "must be at least %s", k.tag.Get("min"))
	}
	if most, ok := bound(k.tag, "max", f.Type()); ok && f.Int() > most.Int() {
		p.add(at, "must be at most %s", k.tag.Get("max"))
	}
}

func (p *problems) text(at string, k key, f reflect.Value) {
	pattern, isPattern := k.tag.Lookup("pattern")
	e, isEnum := f.Interface().(enum)
	switch {
	case f.Len() == 0 && k.tag.Get("required") != "":
		p.add(at, "%s is required", k.name)
	case isEnum && !slices.Contains(e.Values(), f.String()):
		p.add(at, "must be one of %s", strings.Join(e.Values(), ", "))
	case isPattern && !regexp.MustCompile(pattern).MatchString(f.String()):
		p.add(at, "must be %s", k.tag.Get("says"))
	}
}

// bound parses the limit in a tag as a value of the field's type.
func bound(tag reflect.StructTag, name string, t reflect.Type) (reflect.Value, bool) {
	text, ok := tag.Lookup(name)
	if !ok {
		return reflect.Value{}, false
	}
	v := reflect.New(t).Elem()
	if mistake := set(v, text); mistake != "" {
		panic("config: tag " + name + ":" + text + " is " + mistake)
	}
	return v, true
}
