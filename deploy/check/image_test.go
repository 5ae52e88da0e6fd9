package check

import (
	"os"
	"regexp"
	"testing"
)

// TestImages: the image, and that of docs/operations.md with a server over stdio, keep their tasks where the volume
// is, and name their user by number: a pod that must not be root is refused otherwise.
func TestImages(t *testing.T) {
	for file, block := range map[string]string{"../../Dockerfile": `(?s)(.*)`, "../../docs/operations.md": "(?s)```dockerfile\n(.*?)```"} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		found := regexp.MustCompile(block).FindSubmatch(text)
		if found == nil {
			t.Fatalf("%s shows no image", file)
		}
		for _, want := range []string{`ENV STATE_DIRECTORY=/var/lib/taskgate`, `USER \d+(:\d+)?`} {
			if !regexp.MustCompile(`(?m)^` + want + `$`).Match(found[1]) {
				t.Errorf("the image of %s lacks %s", file, want)
			}
		}
	}
}
