package check

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// dist is where "make snapshot" has built.
const dist = "../../dist"

// absent skips a test for what this machine lacks. CI has everything.
func absent(t *testing.T, what string) {
	t.Helper()
	if os.Getenv("CI") != "" {
		t.Fatal(what)
	}
	t.Skip(what)
}

// run runs a program, and returns what it says.
func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		absent(t, err.Error())
	}
	command := exec.Command(path, args...)
	var stderr bytes.Buffer
	command.Stderr = &stderr
	out, err := command.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s%s", command, err, out, &stderr)
	}
	return string(out)
}

// built are the files in dist with this end.
func built(t *testing.T, end string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dist, "taskgate_*"+end))
	if err != nil {
		t.Fatal(err)
	}
	if len(files) == 0 {
		absent(t, `nothing is built: run "make snapshot"`)
	}
	return files
}

// version is what was built, such as "0.0.0-g75de99c".
func version(t *testing.T) string {
	t.Helper()
	_, rest, _ := strings.Cut(filepath.Base(built(t, ".cdx.json")[0]), "_")
	version, _, _ := strings.Cut(rest, "_")
	return version
}

// unpacked is what an archive has, in a folder of the test.
func unpacked(t *testing.T, archive string) string {
	t.Helper()
	dir := t.TempDir()
	if strings.HasSuffix(archive, ".zip") {
		run(t, "unzip", "-q", archive, "-d", dir)
	} else {
		run(t, "tar", "-xzf", archive, "-C", dir)
	}
	return filepath.Join(dir, strings.TrimSuffix(strings.TrimSuffix(filepath.Base(archive), ".zip"), ".tar.gz"))
}

// TestChecksums: each file that is released has its checksum, and no other does.
func TestChecksums(t *testing.T) {
	var want []string
	for _, file := range built(t, "") {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		sum := sha256.Sum256(content)
		want = append(want, hex.EncodeToString(sum[:])+"  "+filepath.Base(file))
	}
	got, err := os.ReadFile(filepath.Join(dist, "checksums.txt"))
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(got)), "\n")
	slices.SortFunc(lines, func(a, b string) int { return cmp.Compare(a[64:], b[64:]) })
	if !slices.Equal(lines, want) {
		t.Errorf("got %s\nwant %s", strings.Join(lines, "\n"), strings.Join(want, "\n"))
	}
}

// TestArchives: each has the binary, which is no larger than it has to be, its documents, and beside
// it a bill of what the binary is made of.
func TestArchives(t *testing.T) {
	for _, archive := range built(t, "") {
		if !strings.HasSuffix(archive, ".tar.gz") && !strings.HasSuffix(archive, ".zip") {
			continue
		}
		dir := unpacked(t, archive)
		for _, name := range []string{"README.md", "CHANGELOG.md", "SECURITY.md", "config.example.yaml", "taskgate.1",
			"completions/taskgate.bash", "completions/_taskgate", "completions/taskgate.fish"} {
			if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
				t.Error(err)
			}
		}
		binary := filepath.Join(dir, "taskgate")
		if strings.HasSuffix(archive, ".zip") {
			binary += ".exe"
			if text, err := os.ReadFile(filepath.Join(dir, "WINDOWS.txt")); err != nil || !strings.Contains(string(text), "is not signed") {
				t.Errorf("what is said of unsigned programs: %q, %v", text, err)
			}
		}
		info, err := os.Stat(binary)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: %.1f MB", filepath.Base(dir), float64(info.Size())/1e6)
		if info.Size() > 29e6 {
			t.Errorf("%s is %.1f MB large: look for what has come along (go tool nm -size -sort size)", binary, float64(info.Size())/1e6)
		}
		checkBill(t, filepath.Join(dist, filepath.Base(dir)+".cdx.json"), run(t, "go", "version", "-m", binary))
	}
}

// checkBill holds a bill of materials against what the linker has written into the binary.
func checkBill(t *testing.T, file, linked string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	type component struct{ Name, Version string }
	var bill struct {
		Metadata   struct{ Component component }
		Components []component
	}
	if err := json.Unmarshal(text, &bill); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	if got := bill.Metadata.Component; got != (component{"taskgate", "v" + version(t)}) {
		t.Errorf("%s is for %v", file, got)
	}
	modules := 0
	for line := range strings.Lines(linked) {
		fields := strings.Fields(line)
		if len(fields) < 3 || fields[0] != "dep" {
			continue
		}
		if modules++; !slices.Contains(bill.Components, component{fields[1], fields[2]}) {
			t.Errorf("%s lacks %s %s", file, fields[1], fields[2])
		}
	}
	if modules < 20 {
		t.Errorf("the binary has %d modules", modules)
	}
}

// TestManual: the man page is one that mandoc has nothing against, with the text of the command line.
func TestManual(t *testing.T) {
	dir := unpacked(t, built(t, "_linux_amd64.tar.gz")[0])
	page := filepath.Join(dir, "taskgate.1")
	run(t, "mandoc", "-T", "lint", "-W", "warning", page)
	shown := strings.Join(strings.Fields(run(t, "mandoc", "-T", "ascii", page)), " ")
	for line := range strings.Lines(run(t, filepath.Join(dir, "taskgate"), "help")) {
		words := strings.Join(strings.Fields(line), " ")
		if !strings.HasSuffix(words, ":") && !strings.Contains(shown, words) {
			t.Errorf("the man page lacks %q", words)
		}
	}
}

// TestRPM: it has the files of the deb.
func TestRPM(t *testing.T) {
	var files []string
	for _, line := range strings.Split(run(t, "dpkg-deb", "--contents", built(t, "_linux_amd64.deb")[0]), "\n") {
		if fields := strings.Fields(line); len(fields) > 5 && !strings.HasPrefix(line, "d") {
			files = append(files, strings.Replace(strings.TrimPrefix(fields[5], "."), "/vendor-completions/", "/site-functions/", 1))
		}
	}
	slices.Sort(files)
	rpm := built(t, "_linux_amd64.rpm")[0]
	if got := strings.Fields(run(t, "rpm", "-qp", "--list", rpm)); !slices.Equal(got, files) {
		t.Errorf("the rpm has %q, the deb %q", got, files)
	}
	if got := strings.TrimSpace(run(t, "rpm", "-qp", "--configfiles", rpm)); got != "/etc/taskgate/taskgate.yaml" {
		t.Errorf("its configuration is %q", got)
	}
}
