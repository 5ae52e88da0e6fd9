package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
)

// docs are the doc comments of struct fields, by "Type.Field".
type docs map[string]string

// readDocs collects the comments from the Go files of a directory.
func readDocs(dir string) (docs, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		return nil, err
	}
	found := docs{}
	for _, name := range files {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if spec, ok := n.(*ast.TypeSpec); ok {
				found.addStruct(spec)
			}
			return true
		})
	}
	return found, nil
}

// addStruct takes the comments of one type, if it is a struct.
func (d docs) addStruct(spec *ast.TypeSpec) {
	structure, ok := spec.Type.(*ast.StructType)
	if !ok {
		return
	}
	for _, field := range structure.Fields.List {
		for _, name := range field.Names {
			d[spec.Name.Name+"."+name.Name] = field.Doc.Text()
		}
	}
}

// description turns the comment of a field into the description of its key:
// one line a paragraph, speaking of the key by the name it has in the file.
func (d docs) description(typeName, field, key string) string {
	var paragraphs []string
	for p := range strings.SplitSeq(strings.TrimSpace(d[typeName+"."+field]), "\n\n") {
		paragraphs = append(paragraphs, strings.Join(strings.Fields(p), " "))
	}
	text := strings.Join(paragraphs, "\n\n")
	if rest, ok := strings.CutPrefix(text, field+" "); ok {
		return key + " " + rest
	}
	return text
}
