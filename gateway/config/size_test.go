package config

import (
	"testing"

	"pgregory.net/rapid"
)

func TestSize(t *testing.T) {
	for _, tt := range []struct {
		in   string
		want Size
		back string
	}{
		{"0", 0, "0"},
		{"1500", 1500, "1500"},
		{"4096", 4 * KiB, "4KiB"},
		{"64KiB", 64 * KiB, "64KiB"},
		{"1024KiB", MiB, "1MiB"},
		{"4MiB", 4 * MiB, "4MiB"},
		{"1GiB", GiB, "1GiB"},
		{"9223372036854775807", 1<<63 - 1, "9223372036854775807"},
		{"8589934591GiB", 8589934591 * GiB, "8589934591GiB"},
	} {
		var s Size
		if err := s.UnmarshalText([]byte(tt.in)); err != nil || s != tt.want {
			t.Errorf("%q = %d, %v; want %d", tt.in, s, err, tt.want)
		}
		if s.String() != tt.back {
			t.Errorf("%q prints as %q, want %q", tt.in, s, tt.back)
		}
	}
}

func TestSizeMistakes(t *testing.T) {
	for _, in := range []string{
		"", "MiB", "-1", "+1", "1.5MiB", "4MB", "4M", "4 MiB", "4mib", "0x10", "1_000",
		"9223372036854775808", "8589934592GiB", "99999999999999999999GiB",
	} {
		s := Size(7)
		if err := s.UnmarshalText([]byte(in)); err == nil || s != 7 {
			t.Errorf("%q = %d, %v; want an error", in, s, err)
		}
	}
}

func TestSizeRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := Size(rapid.Int64Min(0).Draw(t, "size"))
		text, err := want.MarshalText()
		var got Size
		if err != nil || got.UnmarshalText(text) != nil || got != want {
			t.Fatalf("%d became %q and then %d", want, text, got)
		}
	})
}
