package procgroup

import (
	"strings"
	"testing"
)

// TestBatchLine: what cmd.exe reads for an argument, and what is refused. That programs get what was meant is
// shown on Windows by TestBatchFile.
func TestBatchLine(t *testing.T) {
	for arg, want := range map[string]string{
		``:         `""`,
		`a b`:      `"a b"`,
		`&calc`:    `"&calc"`,
		`^|a!b!`:   `"^|a!b!"`,
		`C:\x\`:    `"C:\x\\"`,
		`\\`:       `"\\\\"`,
		`für 世界 🍵`: `"für 世界 🍵"`,
	} {
		line, err := batchLine(`C:\my tools\npx.cmd`, []string{arg})
		if want := `cmd.exe /v:OFF /d /c ""C:\my tools\npx.cmd" ` + want + `"`; err != nil || line != want {
			t.Errorf("%q: %s, %v, want %s", arg, line, err, want)
		}
	}
	for _, bad := range []string{"a\nb", "a\rb", "a\x00b", `a"b`, "%PATH%", "100%"} {
		for _, words := range [][]string{{"x.cmd", bad}, {bad + ".cmd"}} {
			if line, err := batchLine(words[0], words[1:]); err == nil {
				t.Errorf("%q: %s", words, line)
			}
		}
	}
}

func TestIsBatch(t *testing.T) {
	for path, want := range map[string]bool{
		`C:\npx.cmd`: true, `C:\NPX.CMD`: true, `x.bat`: true, `x.cmd. .`: true, `x.exe`: false, `cmd`: false, `x.cmd\y`: false,
	} {
		if isBatch(path) != want {
			t.Errorf("%s: %t", path, !want)
		}
	}
}

// FuzzBatchLine: cmd.exe counts quotation marks. Every character of an argument is between two of them, and no percent
// sign is among them.
func FuzzBatchLine(f *testing.F) {
	f.Add(`a"&b`)
	f.Add(`%x%\`)
	f.Fuzz(func(t *testing.T, arg string) {
		line, err := batchLine("x.cmd", []string{arg})
		if err != nil {
			return
		}
		rest := strings.TrimSuffix(strings.TrimPrefix(line, `cmd.exe /v:OFF /d /c ""x.cmd" `), `"`)
		inner := strings.TrimSuffix(strings.TrimPrefix(rest, `"`), `"`)
		if len(inner) != len(rest)-2 || strings.ContainsAny(inner, "\"%\r\n") {
			t.Fatalf("open: %s", line)
		}
	})
}
