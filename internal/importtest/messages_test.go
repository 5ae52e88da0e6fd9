package importtest

import (
	"regexp"
	"strings"
	"testing"
)

var (
	firstCell = regexp.MustCompile(`(?m)^\| ([^|]+) \|`)
	codeSpan  = regexp.MustCompile("`([^`]+)`")
)

// What docs/troubleshooting.md quotes of the log and of answers is in the source, word for word: a reader searches for it.
// "…" stands for what differs. A quote is a piece of code of three words or more in the first column.
func TestQuotedMessages(t *testing.T) {
	var source strings.Builder
	for _, name := range filesOf(t, ".go") {
		if !strings.HasSuffix(name, "_test.go") {
			source.WriteString(textOf(t, name))
		}
	}
	text, quotes := source.String(), 0
	for _, row := range firstCell.FindAllStringSubmatch(textOf(t, root+"/docs/troubleshooting.md"), -1) {
		for _, span := range codeSpan.FindAllStringSubmatch(row[1], -1) {
			if strings.Count(span[1], " ") < 2 {
				continue
			}
			quotes++
			for part := range strings.SplitSeq(span[1], "…") {
				if !strings.Contains(text, part) {
					t.Errorf("no source has the message %q", span[1])
				}
			}
		}
	}
	if quotes < 30 {
		t.Errorf("only %d quotes were found", quotes)
	}
}
