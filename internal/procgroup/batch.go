package procgroup

import (
	"errors"
	"path/filepath"
	"strings"
)

// isBatch reports whether Windows has cmd.exe run a file. It takes no notice of full stops and spaces behind a
// file's name.
func isBatch(path string) bool {
	switch strings.ToLower(filepath.Ext(strings.TrimRight(path, ". "))) {
	case ".bat", ".cmd":
		return true
	}
	return false
}

var errBatchLine = errors.New("a batch file cannot get an argument with a quotation mark, a percent sign or a line break: give it by env, or configure the program that the batch file starts")

// unquotable are the characters that keep a meaning between quotation marks: for cmd.exe, which reads the arguments of
// a batch file twice, or for the programs that take them from it, which differ about a quotation mark.
const unquotable = "\"%\r\n\x00"

// batchLine returns the command line by which cmd.exe runs a batch file, so that no argument becomes a command
// (CVE-2024-24576, "BatBadBut"). Each argument is in quotation marks, with the backslashes at its end doubled, since a
// program would read the last one and the mark as one character. /v:OFF leaves an exclamation mark alone.
func batchLine(script string, args []string) (string, error) {
	line := `cmd.exe /v:OFF /d /c ""` + script + `"`
	for _, arg := range append([]string{script}, args...) {
		if strings.ContainsAny(arg, unquotable) {
			return "", errBatchLine
		}
	}
	for _, arg := range args {
		slashes := len(arg) - len(strings.TrimRight(arg, `\`))
		line += ` "` + arg + strings.Repeat(`\`, slashes) + `"`
	}
	return line + `"`, nil
}
