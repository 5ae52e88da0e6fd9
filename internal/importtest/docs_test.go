package importtest

import (
	"go/ast"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const root = "../.."

// filesOf are the files of the project with one of the suffixes.
func filesOf(t *testing.T, suffixes ...string) []string {
	t.Helper()
	var files []string
	err := filepath.WalkDir(root, func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() {
			if base := entry.Name(); base == "node_modules" || base == "bin" || len(base) > 2 && base[0] == '.' {
				return filepath.SkipDir
			}
			return nil
		}
		for _, s := range suffixes {
			if strings.HasSuffix(name, s) {
				files = append(files, name)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func textOf(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

var (
	fencedCode = regexp.MustCompile("(?ms)^```.*?^```")
	heading    = regexp.MustCompile(`(?m)^#+ +(.+)$`)
	mdLink     = regexp.MustCompile(`\]\(([^()\s]+)\)`)
	notInSlug  = regexp.MustCompile(`[^\p{L}\p{N}_\- ]`)
)

// anchors are the fragments by which a page's headings can be linked to, as
// GitHub makes them.
func anchors(page string) map[string]bool {
	found := map[string]bool{}
	for _, m := range heading.FindAllStringSubmatch(fencedCode.ReplaceAllString(page, ""), -1) {
		found[strings.ReplaceAll(notInSlug.ReplaceAllString(strings.ToLower(m[1]), ""), " ", "-")] = true
	}
	return found
}

// Every link between the project's pages leads somewhere.
func TestLinksOfPages(t *testing.T) {
	pages := filesOf(t, ".md")
	if len(pages) < 5 {
		t.Fatalf("found only %d pages", len(pages))
	}
	for _, page := range pages {
		for _, m := range mdLink.FindAllStringSubmatch(fencedCode.ReplaceAllString(textOf(t, page), ""), -1) {
			link := m[1]
			if strings.Contains(link, "://") || strings.HasPrefix(link, "mailto:") {
				continue
			}
			file, fragment, _ := strings.Cut(link, "#")
			target := page
			if file != "" {
				target = filepath.Join(filepath.Dir(page), file)
			}
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s: the link to %s leads nowhere", page, link)
				continue
			}
			if fragment != "" && strings.HasSuffix(target, ".md") && !anchors(textOf(t, target))[fragment] {
				t.Errorf("%s: there is no heading for the link to %s", page, link)
			}
		}
	}
}

// The forms in which comments cite the pages.
var (
	citesProtocol = regexp.MustCompile(`protocol\.md((?:[ ,;]+(?:and |to |section |Appendix )?(?:[TLXAPHZ]\d{1,2}|C[ .]?\d+|\d\d?(?:\.\d+)*)\b)+)`)
	citesDesign   = regexp.MustCompile(`design\.md((?:[ ,;]+(?:and |section )?\d(?:\.\d+)+)+)`)
	citesRule     = regexp.MustCompile(`(?:^|[\s(,;:])([TLXAPHZ]\d{1,2})\b`)
	section       = regexp.MustCompile(`\d+(?:\.\d+)?`)
	appendixPoint = regexp.MustCompile(`(?:Appendix C\.|protocol\.md C )(\d+)`)

	ruleDefined    = regexp.MustCompile(`(?m)^- \*\*([TLXAPHZ]\d+)\*\* `)
	sectionDefined = regexp.MustCompile(`(?m)^#+ (\d+(?:\.\d+)?)\.? `)
	// decisionIndexed is a row of the index in docs/design.md.
	decisionIndexed = regexp.MustCompile(`(?m)^\| (\d+\.\d+) \| \[`)
	pointDefined    = regexp.MustCompile(`(?m)^(\d+)\. `)
)

// defined are the first groups of all matches. A page that gives one twice is
// wrong.
func defined(t *testing.T, page string, by *regexp.Regexp) map[string]bool {
	t.Helper()
	found := map[string]bool{}
	for _, m := range by.FindAllStringSubmatch(page, -1) {
		if found[m[1]] {
			t.Errorf("%s is given twice", m[1])
		}
		found[m[1]] = true
	}
	if len(found) == 0 {
		t.Fatalf("found nothing by %s", by)
	}
	return found
}

// cited calls check for each text in which citations stand: the comments of the
// Go files, and what is before the first file of a transcript.
func cited(t *testing.T, check func(file, text string)) {
	t.Helper()
	for _, s := range sources(t) {
		for _, group := range s.syntax.Comments {
			check(s.name, strings.Join(strings.Fields(group.Text()), " "))
		}
	}
	for _, name := range filesOf(t, ".txtar") {
		comment, _, _ := strings.Cut(textOf(t, name), "\n-- ")
		check(name, strings.Join(strings.Fields(comment), " "))
	}
}

// designPages is docs/design.md with the pages under docs/design: a decision is on one
// of them, and is cited by its number alone.
func designPages(t *testing.T) string {
	t.Helper()
	pages := []string{textOf(t, root+"/docs/design.md")}
	for _, page := range filesOf(t, ".md") {
		if filepath.Dir(page) == filepath.Join(root, "docs", "design") {
			pages = append(pages, textOf(t, page))
		}
	}
	return strings.Join(pages, "\n")
}

// What comments cite of docs/protocol.md and of the design is there.
func TestCitations(t *testing.T) {
	protocol := textOf(t, root+"/docs/protocol.md")
	_, appendix, ok := strings.Cut(protocol, "\n## Appendix C.")
	if !ok {
		t.Fatal("docs/protocol.md has no Appendix C")
	}
	rules := defined(t, protocol, ruleDefined)
	sections := defined(t, protocol, sectionDefined)
	points := defined(t, appendix, pointDefined)
	decisions := defined(t, designPages(t), sectionDefined)
	index := defined(t, textOf(t, root+"/docs/design.md"), decisionIndexed)
	if !maps.Equal(decisions, index) {
		t.Errorf("docs/design.md lists the decisions %v, and its pages have %v", index, decisions)
	}

	counted := map[string]int{}
	want := func(file, kind string, have map[string]bool, what string) {
		counted[kind]++
		if !have[what] {
			t.Errorf("%s cites the %s %s, which does not exist", file, kind, what)
		}
	}
	cited(t, func(file, text string) {
		for _, m := range citesRule.FindAllStringSubmatch(text, -1) {
			want(file, "rule", rules, m[1])
		}
		for _, m := range appendixPoint.FindAllStringSubmatch(text, -1) {
			want(file, "point of Appendix C", points, m[1])
		}
		for _, m := range citesProtocol.FindAllStringSubmatch(text, -1) {
			for _, ref := range regexp.MustCompile(`[ ,;]+`).Split(m[1], -1) {
				if s := section.FindString(ref); s != "" && strings.HasPrefix(ref, s) && !strings.Contains(m[0], "C "+ref) {
					want(file, "section", sections, s)
				}
			}
		}
		for _, m := range citesDesign.FindAllStringSubmatch(text, -1) {
			for _, s := range section.FindAllString(m[1], -1) {
				want(file, "decision", decisions, s)
			}
		}
	})
	for _, page := range filesOf(t, ".md") {
		for _, m := range citesDesign.FindAllStringSubmatch(textOf(t, page), -1) {
			for _, s := range section.FindAllString(m[1], -1) {
				want(page, "decision", decisions, s)
			}
		}
	}
	for _, kind := range []string{"rule", "point of Appendix C", "section", "decision"} {
		if counted[kind] < 3 {
			t.Errorf("found only %d citations of a %s: the forms have changed", counted[kind], kind)
		}
	}
	t.Log(counted)
}

// Every test that a page names, as proof of what it says, is there.
func TestNamedTests(t *testing.T) {
	exist := map[string]bool{}
	for _, s := range sources(t) {
		for _, decl := range s.syntax.Decls {
			if f, ok := decl.(*ast.FuncDecl); ok && s.test && f.Recv == nil {
				exist[f.Name.Name] = true
			}
		}
	}
	named := regexp.MustCompile("`(Test[A-Z]\\w*)(?:/[^`]*)?`")
	found := 0
	for _, page := range filesOf(t, ".md") {
		for _, m := range named.FindAllStringSubmatch(textOf(t, page), -1) {
			found++
			if !exist[m[1]] {
				t.Errorf("%s names %s, which does not exist", page, m[1])
			}
		}
	}
	if found < 10 {
		t.Errorf("found only %d tests that pages name", found)
	}
}

// Every path of the project that a page names in backticks is there. The changelog tells of
// what has been.
func TestNamedPaths(t *testing.T) {
	named := regexp.MustCompile("`((?:cmd|deploy|docs|examples|gateway|internal|redisstore|shim)/[\\w./*-]+)`")
	found := 0
	for _, page := range filesOf(t, ".md") {
		if filepath.Base(page) == "CHANGELOG.md" {
			continue
		}
		for _, m := range named.FindAllStringSubmatch(textOf(t, page), -1) {
			found++
			if there, err := filepath.Glob(filepath.Join(root, m[1])); err != nil || len(there) == 0 {
				t.Errorf("%s names %s, which does not exist", page, m[1])
			}
		}
	}
	if found < 30 {
		t.Errorf("found only %d paths that pages name", found)
	}
}
