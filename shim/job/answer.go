package job

import (
	"bytes"
	"encoding/json"
	"math/big"
	"regexp"

	"github.com/theory/jsonpath"

	"taskgate/internal/jsonrpc"
)

// query is a JSONPath. It selects from values that were decoded with json.Number, whose digits it leaves alone, so an
// id above 2^53 stays as the server wrote it.
type query interface {
	Select(doc any) jsonpath.NodeList
}

func parseQuery(text string) (query, error) {
	path, err := jsonpath.Parse(text)
	if err != nil {
		return nil, err
	}
	return path, nil
}

// answer is a CallToolResult, as places look at it.
type answer struct {
	structured json.RawMessage // nil if there is none
	texts      []string        // of the text blocks

	docs []any // once they are needed
	read bool
}

func readAnswer(result json.RawMessage) *answer {
	a := &answer{}
	a.structured, _ = jsonrpc.Get(result, "structuredContent")
	blocks, _ := jsonrpc.Get(result, "content")
	for block := range jsonrpc.Elements(blocks) {
		if text, ok := jsonrpc.GetString(block, "text"); ok {
			a.texts = append(a.texts, text)
		}
	}
	return a
}

// documents are the structured content, and the texts that are JSON.
func (a *answer) documents() []any {
	if a.read {
		return a.docs
	}
	a.read = true
	if doc, err := decode(a.structured); err == nil {
		a.docs = append(a.docs, doc)
	}
	for _, text := range a.texts {
		if doc, err := decode([]byte(text)); err == nil {
			a.docs = append(a.docs, doc)
		}
	}
	return a.docs
}

// decode reads one JSON value, and leaves numbers as they are.
func decode(text []byte) (doc any, err error) {
	if !json.Valid(text) {
		return nil, errNoID
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	err = d.Decode(&doc)
	return doc, err
}

// matches reports whether the expression matches a text, or what is structured.
func (a *answer) matches(pattern *regexp.Regexp) bool {
	for _, text := range a.texts {
		if pattern.MatchString(text) {
			return true
		}
	}
	return pattern.Match(a.structured)
}

// Value is a JSON value in a spelling that equal values share.
type Value string

// ParseValue reads a JSON value. Two numbers are equal whatever their spelling, and a number equals no text.
func ParseValue(text json.RawMessage) (Value, error) {
	doc, err := decode(text)
	if err != nil {
		return "", err
	}
	spelt, err := json.Marshal(sameNumbers(doc))
	return Value(spelt), err
}

// precision is that of numbers that are compared, in bits: more than 150 digits.
const precision = 512

// sameNumbers gives each number one spelling.
func sameNumbers(doc any) any {
	switch v := doc.(type) {
	case json.Number:
		if f, _, err := big.ParseFloat(string(v), 10, precision, big.ToNearestEven); err == nil {
			return "number " + f.Text('p', 0)
		}
		return "number " + string(v)
	case string:
		return "text " + v
	case []any:
		for i := range v {
			v[i] = sameNumbers(v[i])
		}
	case map[string]any:
		for name := range v {
			v[name] = sameNumbers(v[name])
		}
	}
	return doc
}

// contains reports whether a status is in a list.
func contains(list []Value, status json.RawMessage) bool {
	if len(list) == 0 {
		return false
	}
	is, err := ParseValue(status)
	for _, v := range list {
		if err == nil && v == is {
			return true
		}
	}
	return false
}
