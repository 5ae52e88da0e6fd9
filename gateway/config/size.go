package config

import (
	"errors"
	"math"
	"strconv"
	"strings"
)

// Size is a number of bytes. In a file it is written as a whole number of
// bytes or of KiB, MiB or GiB: 4096, 64KiB, 4MiB.
type Size int64

// The units of a Size.
const (
	KiB Size = 1 << 10
	MiB Size = 1 << 20
	GiB Size = 1 << 30
)

// sizeUnits begins with the largest, so that String picks the shortest text.
var sizeUnits = []struct {
	name string
	size Size
}{{"GiB", GiB}, {"MiB", MiB}, {"KiB", KiB}}

// errSize names the accepted form, and leaves out the value by intent.
var errSize = errors.New("not a size: write whole bytes, or a number with KiB, MiB or GiB, such as 4MiB")

// String returns the size in its largest whole unit: 4MiB, 1500.
func (s Size) String() string {
	for _, u := range sizeUnits {
		if s != 0 && s%u.size == 0 {
			return strconv.FormatInt(int64(s/u.size), 10) + u.name
		}
	}
	return strconv.FormatInt(int64(s), 10)
}

// MarshalText returns the form that a file uses. Its error is always nil.
func (s Size) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads the form that a file uses. The error says what is accepted, without the text.
func (s *Size) UnmarshalText(text []byte) error {
	digits, unit := string(text), Size(1)
	for _, u := range sizeUnits {
		if d, ok := strings.CutSuffix(digits, u.name); ok {
			digits, unit = d, u.size
			break
		}
	}
	n, err := strconv.ParseUint(digits, 10, 63)
	if err != nil || Size(n) > math.MaxInt64/unit {
		return errSize
	}
	*s = Size(n) * unit
	return nil
}
