package operator

import (
	"bytes"
	"encoding/json"
	"flag"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "rewrite openapi.json")

// object is one of JSON.
type object = map[string]any

// TestOpenAPI: openapi.json says what the code does. It is made of the routes, of the types, and of their comments.
func TestOpenAPI(t *testing.T) {
	s := schemas{comments: commentsOf(t), made: object{}}
	paths := object{}
	for _, r := range routes {
		at, _ := paths[Base+r.path].(object)
		if at == nil {
			at = object{}
			paths[Base+r.path] = at
		}
		at[strings.ToLower(r.method)] = s.operation(r)
	}
	doc := object{
		"openapi":    "3.1.0",
		"info":       object{"title": "taskgate for operators", "version": "1", "description": "See docs/operator.md."},
		"security":   []any{object{"key": []any{}}},
		"paths":      paths,
		"components": object{"schemas": s.made, "securitySchemes": object{"key": object{"type": "http", "scheme": "bearer"}}},
	}
	var want bytes.Buffer
	e := json.NewEncoder(&want)
	e.SetIndent("", " ")
	e.SetEscapeHTML(false)
	if err := e.Encode(doc); err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile("openapi.json", want.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if !bytes.Equal(want.Bytes(), openAPI) {
		t.Error("openapi.json is not what the code does: go test ./gateway/operator -run TestOpenAPI -update")
	}
}

// schemas are those of types, by name.
type schemas struct {
	comments map[string]string
	made     object
}

func (s schemas) operation(r route) object {
	ok := object{"description": "OK"}
	if r.answer != nil {
		ok["content"] = s.json(reflect.TypeOf(r.answer))
	} else {
		ok["content"] = object{"text/event-stream": object{}}
	}
	all := object{"200": ok}
	for _, status := range append([]int{401, 403, 503}, r.fails...) {
		all[strconv.Itoa(status)] = object{"description": "not done", "content": s.json(reflect.TypeFor[Error]())}
	}
	params := []any{}
	for _, m := range regexp.MustCompile(`\{(\w+)\}`).FindAllStringSubmatch(r.path, -1) {
		params = append(params, object{"name": m[1], "in": "path", "required": true, "schema": object{"type": "string"}})
	}
	for _, p := range r.params {
		schema := object{"type": "string"}
		if len(p.enum) > 0 {
			schema["enum"] = p.enum
		}
		if p.repeats {
			schema = object{"type": "array", "items": schema}
		}
		params = append(params, object{"name": p.name, "in": "query", "description": p.says, "schema": schema})
	}
	return object{"summary": r.says, "parameters": params, "responses": all}
}

func (s schemas) json(t reflect.Type) object {
	return object{"application/json": object{"schema": s.of(t)}}
}

// of is the schema of a type: a reference where it has a name here.
func (s schemas) of(t reflect.Type) object {
	switch {
	case t == reflect.TypeFor[time.Time]():
		return object{"type": "string", "format": "date-time"}
	case t == reflect.TypeFor[json.RawMessage]():
		return object{}
	}
	switch t.Kind() {
	case reflect.Pointer:
		return s.of(t.Elem())
	case reflect.Slice:
		return object{"type": "array", "items": s.of(t.Elem())}
	case reflect.Map:
		return object{"type": "object", "additionalProperties": s.of(t.Elem())}
	case reflect.Bool:
		return object{"type": "boolean"}
	case reflect.Int, reflect.Int64:
		return object{"type": "integer"}
	case reflect.Float64:
		return object{"type": "number"}
	case reflect.String:
		return object{"type": "string"}
	}
	if s.made[t.Name()] == nil {
		props, required := object{}, []any{}
		made := object{"type": "object", "description": s.comments[t.Name()], "properties": props}
		s.made[t.Name()] = made
		for _, f := range reflect.VisibleFields(t) {
			name, opts, _ := strings.Cut(f.Tag.Get("json"), ",")
			if f.Anonymous {
				continue
			}
			schema := s.of(f.Type)
			if says := s.comments[ownerOf(t, f)+"."+f.Name]; says != "" {
				schema["description"] = says
			}
			if opts != "omitempty" {
				required = append(required, name)
			}
			props[name] = schema
		}
		made["required"] = required
	}
	return object{"$ref": "#/components/schemas/" + t.Name()}
}

// ownerOf is the type that a field stands in, which may be one that is embedded.
func ownerOf(t reflect.Type, f reflect.StructField) string {
	for _, i := range f.Index[:len(f.Index)-1] {
		t = t.Field(i).Type
	}
	return t.Name()
}

// commentsOf are the comments of types.go, by "Type" and "Type.Field".
func commentsOf(t *testing.T) map[string]string {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "types.go", nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	text := func(g *ast.CommentGroup) string { return strings.Join(strings.Fields(g.Text()), " ") }
	out := map[string]string{}
	for _, d := range file.Decls {
		decl, ok := d.(*ast.GenDecl)
		if !ok || decl.Tok != token.TYPE {
			continue
		}
		name := decl.Specs[0].(*ast.TypeSpec).Name.Name
		out[name] = text(decl.Doc)
		for _, f := range decl.Specs[0].(*ast.TypeSpec).Type.(*ast.StructType).Fields.List {
			if len(f.Names) > 0 {
				out[name+"."+f.Names[0].Name] = text(f.Doc)
			}
		}
	}
	return out
}
