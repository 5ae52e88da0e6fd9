package config

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"
)

var update = flag.Bool("update", false, "rewrite the expectations in testdata")

// Each archive in testdata/mistakes holds a file (config.yaml), perhaps others
// that it names, and the error that loading it gives, as a person sees it.
func TestMistakes(t *testing.T) {
	archives, err := filepath.Glob("testdata/mistakes/*.txtar")
	if err != nil || len(archives) == 0 {
		t.Fatal("no archives", err)
	}
	for _, name := range archives {
		t.Run(strings.TrimSuffix(filepath.Base(name), ".txtar"), func(t *testing.T) {
			archive, err := txtar.ParseFile(name)
			if err != nil {
				t.Fatal(err)
			}
			got, want := mistakes(t, archive), section(archive, "error")
			if *update {
				want.Data = []byte(got)
				if err := os.WriteFile(name, txtar.Format(archive), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if diff := cmp.Diff(string(want.Data), got); diff != "" {
				t.Errorf("error (-want +got):\n%s", diff)
			}
		})
	}
}

// mistakes lays out the files of an archive and returns the error of loading
// its config.yaml.
func mistakes(t *testing.T, archive *txtar.Archive) string {
	t.Helper()
	dir := t.TempDir()
	for _, f := range archive.Files {
		if err := os.WriteFile(filepath.Join(dir, f.Name), f.Data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	_, err := Parse(filepath.Join(dir, "config.yaml"), section(archive, "config.yaml").Data, testEnv)
	if err == nil {
		t.Fatal("no error")
	}
	eachMistake(t, err)
	if strings.Contains(err.Error(), secret) {
		t.Error("the error shows what a variable or a file holds")
	}
	return strings.ReplaceAll(err.Error(), dir+string(filepath.Separator), "") + "\n"
}

// eachMistake returns the mistakes that an error joins.
func eachMistake(t *testing.T, err error) (all []*Error) {
	t.Helper()
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		t.Fatalf("error is a %T", err)
	}
	for _, one := range joined.Unwrap() {
		e, ok := one.(*Error)
		if !ok {
			t.Fatalf("a mistake is a %T", one)
		}
		all = append(all, e)
	}
	return all
}

// section returns a file of an archive, added if need be.
func section(archive *txtar.Archive, name string) *txtar.File {
	for i := range archive.Files {
		if archive.Files[i].Name == name {
			return &archive.Files[i]
		}
	}
	archive.Files = append(archive.Files, txtar.File{Name: name})
	return &archive.Files[len(archive.Files)-1]
}

// secret is what the variable SECRET holds in these tests, and what files hold
// that must not be shown.
const secret = "s3cr3t"

func testEnv(name string) (string, bool) {
	v, ok := map[string]string{"SECRET": secret, "EMPTY": "", "SEVEN": "7", "TREE": "{a: 1} # b\nc: d"}[name]
	return v, ok
}
