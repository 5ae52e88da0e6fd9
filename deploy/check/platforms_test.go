package check

import (
	"os"
	"strings"
	"testing"

	"golang.org/x/tools/go/packages"
)

// TestPlatforms: the program has no mistake of types on any platform that is released. The types are
// read from the sources of all that it imports, which takes seconds where a build takes minutes.
func TestPlatforms(t *testing.T) {
	for _, platform := range []string{"darwin/arm64", "windows/amd64"} {
		goos, goarch, _ := strings.Cut(platform, "/")
		all, err := packages.Load(&packages.Config{
			Mode: packages.LoadAllSyntax, Dir: "../..",
			Env: append(os.Environ(), "GOOS="+goos, "GOARCH="+goarch, "CGO_ENABLED=0"),
		}, "./cmd/taskgate")
		if err != nil {
			t.Fatal(err)
		}
		packages.Visit(all, nil, func(p *packages.Package) {
			for _, err := range p.Errors {
				t.Errorf("%s: %v", platform, err)
			}
		})
	}
}
