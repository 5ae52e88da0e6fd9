package config

import (
	"reflect"
	"regexp"
	"slices"
	"strings"
)

// checkFields checks each key of a struct against its tags (min, max, pattern, required) and its
// type. Other checks handle lists and the structs in them.
func (p *problems) checkFields(at string, structure any) {
	v := reflect.ValueOf(structure).Elem()
	for _, k := range keysOf(v.Type()) {
		f := v.FieldByIndex(k.index)
		switch {
		case isScalar(f.Type()):
			p.checkField(joinKey(at, k.name), k, f)
		case f.Kind() == reflect.Struct && f.Type() != reflect.TypeFor[Tool]():
			p.checkFields(joinKey(at, k.name), f.Addr().Interface())
		}
	}
}

// checkRule checks the keys of a rule that differ from the defaults.
func (p *problems) checkRule(at string, r *Rule, defaults Tool) {
	v, same := reflect.ValueOf(r).Elem(), reflect.ValueOf(&Rule{Tool: defaults}).Elem()
	for _, k := range keysOf(v.Type()) {
		f := v.FieldByIndex(k.index)
		if isScalar(f.Type()) && !f.Equal(same.FieldByIndex(k.index)) {
			p.checkField(joinKey(at, k.name), k, f)
		}
	}
}

func (p *problems) checkField(at string, k key, f reflect.Value) {
	if f.Kind() == reflect.String {
		p.checkText(at, k, f)
		return
	}
	if k.tag.Get("auto") != "" && f.Int() == int64(Auto) {
		return
	}
	if least, ok := parseBound(k.tag, "min", f.Type()); ok && f.Int() < least.Int() {
		p.add(at, "must be at least %s", k.tag.Get("min"))
	}
	if most, ok := parseBound(k.tag, "max", f.Type()); ok && f.Int() > most.Int() {
		p.add(at, "must be at most %s", k.tag.Get("max"))
	}
}

func (p *problems) checkText(at string, k key, f reflect.Value) {
	pattern, isPattern := k.tag.Lookup("pattern")
	e, isEnum := f.Interface().(enum)
	switch {
	case f.Len() == 0 && k.tag.Get("required") != "":
		p.add(at, "%s is required", k.name)
	case isEnum && f.Type() == reflect.TypeFor[Truth]() && f.Len() == 0:
	case isEnum && !slices.Contains(e.Values(), f.String()):
		p.add(at, "must be one of %s", strings.Join(e.Values(), ", "))
	case isPattern && !regexp.MustCompile(pattern).MatchString(f.String()):
		p.add(at, "must be %s", k.tag.Get("says"))
	}
}

// parseBound parses the limit in a tag as a value of the field's type.
func parseBound(tag reflect.StructTag, name string, t reflect.Type) (reflect.Value, bool) {
	text, ok := tag.Lookup(name)
	if !ok {
		return reflect.Value{}, false
	}
	v := reflect.New(t).Elem()
	if mistake := setText(v, text); mistake != "" {
		panic("config: tag " + name + ":" + text + " is " + mistake)
	}
	return v, true
}
