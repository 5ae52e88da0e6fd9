package mcpheader

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"strings"

	"taskgate/internal/jsonrpc"
)

// maxInteger is the largest integer that every JSON reader keeps exact: 2^53-1. Its negative is the
// smallest.
const maxInteger = 1<<53 - 1

var (
	errAbsent   = errors.New("header is present, but the argument is not")
	errMismatch = errors.New("header and argument differ")
	errInteger  = errors.New("not an integer within ±(2^53-1)")
)

// Value returns the header text of an argument, before [Encode]: strings as they are, integers in
// decimal, booleans as true or false. An argument that is absent (empty) or null has no header, so
// present is false. Value fails if the argument has another type than p.
func Value(arg json.RawMessage, p Param) (s string, present bool, err error) {
	text := strings.Trim(string(arg), " \t\r\n")
	if text == "" || text == "null" {
		return "", false, nil
	}
	switch p.Type {
	case typeInteger:
		s, err = integer(text)
	case typeBoolean:
		if s = text; s != "true" && s != "false" {
			err = errors.New("not a boolean")
		}
	case typeString:
		var ok bool
		if s, ok = jsonrpc.GetString([]byte(text)); !ok {
			err = errors.New("not a string")
		}
	default:
		err = fmt.Errorf("type %q has no header form", p.Type)
	}
	if err != nil {
		return "", false, fmt.Errorf("argument for Mcp-Param-%s: %w", p.Header, err)
	}
	return s, true, nil
}

// Match compares a header, as received, with the argument that it mirrors. Integers are compared as
// numbers, so that 42.0 matches 42; everything else as text. A header for an argument that is
// absent or null is a mismatch. The caller checks for missing headers.
func Match(headerValue string, arg json.RawMessage, p Param) error {
	got, err := Decode(headerValue)
	if err != nil {
		return err
	}
	want, present, err := Value(arg, p)
	switch {
	case err != nil:
		return err
	case !present:
		return errAbsent
	}
	if p.Type == typeInteger {
		if got, err = integer(got); err != nil {
			return err
		}
	}
	if got != want {
		return errMismatch
	}
	return nil
}

// integer reads a JSON number that is an integer in value, whatever its spelling, and writes it in
// decimal.
func integer(text string) (string, error) {
	if !json.Valid([]byte(text)) || len(text) > 64 || strings.ContainsAny(text, `"{[tfn`) || hugeExponent(text) {
		return "", errInteger
	}
	r, ok := new(big.Rat).SetString(text)
	if !ok || !r.IsInt() || r.Num().CmpAbs(big.NewInt(maxInteger)) > 0 {
		return "", errInteger
	}
	return r.Num().String(), nil
}

// hugeExponent reports an exponent of more than two digits: numbers in range need fewer, and it
// would be costly to expand.
func hugeExponent(text string) bool {
	i := strings.IndexAny(text, "eE")
	return i >= 0 && len(strings.TrimLeft(text[i+1:], "+-0")) > 2
}
