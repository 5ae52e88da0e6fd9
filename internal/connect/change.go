package connect

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/pelletier/go-toml/v2"
	"github.com/rogpeppe/go-internal/diff"
	"github.com/tailscale/hujson"
)

// Change is a client's file before and after it names a server.
type Change struct {
	File          string // its path, without symbolic links
	before, after []byte // before is nil if there is no file
	mode          fs.FileMode
}

// mostBytes bounds a file that is read.
const mostBytes = 16 << 20

// ErrTaken says that a TOML file has a server of this name, and another entry. It is not replaced, because its comments
// would go.
var ErrTaken = errors.New("the file has another entry of this name already")

// Snippet returns the part of the client's file that names the server.
func (c Client) Snippet(s Server) string {
	if c.isTOML {
		return c.table(s)
	}
	text, err := c.setJSON(nil, s)
	if err != nil {
		panic(err) // an empty object takes any member
	}
	return string(text)
}

// Plan reads the client's file and returns the change that names the server; file is "" for the one that the client
// reads. A file that is neither there nor empty must be valid.
func (c Client) Plan(file string, s Server) (Change, error) {
	if file == "" {
		var err error
		if file, err = c.file(); err != nil {
			return Change{}, err
		}
	}
	change := Change{File: file, mode: 0o600} // others' clients may keep keys there
	if target, err := filepath.EvalSymlinks(file); err == nil {
		change.File = target
	}
	info, err := os.Stat(change.File)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return Change{}, err
	case !info.Mode().IsRegular() || info.Size() > mostBytes:
		return Change{}, fmt.Errorf("%s is no file that can be changed", change.File)
	default:
		change.mode = info.Mode().Perm()
		if change.before, err = os.ReadFile(change.File); err != nil {
			return Change{}, err
		}
	}
	set := c.setJSON
	if c.isTOML {
		set = c.setTOML
	}
	if change.after, err = set(change.before, s); err != nil {
		return Change{}, fmt.Errorf("%s: %w", change.File, err)
	}
	return change, nil
}

// IsNone reports whether the file names the server as it should already.
func (c Change) IsNone() bool { return bytes.Equal(c.before, c.after) }

// Diff shows the change as a unified diff.
func (c Change) Diff() string {
	return string(diff.Diff(c.File, c.before, c.File+" (new)", c.after))
}

// Write replaces the file, and returns the name of the copy that it keeps of the one before; "" if there was none.
// The file is whole at any moment.
func (c Change) Write() (kept string, err error) {
	if err := os.MkdirAll(filepath.Dir(c.File), 0o755); err != nil {
		return "", err
	}
	if c.before != nil {
		kept = c.File + time.Now().Format(".2006-01-02T150405")
		if err := writeNew(kept, c.before, c.mode); err != nil {
			return "", err
		}
	}
	made := c.File + ".taskgate-new"
	if err := writeNew(made, c.after, c.mode); err != nil {
		return kept, err
	}
	if err := os.Rename(made, c.File); err != nil {
		return kept, errors.Join(err, os.Remove(made))
	}
	return kept, nil
}

func writeNew(file string, content []byte, mode fs.FileMode) error {
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	return errors.Join(err, f.Sync(), f.Close())
}

// setTOML adds the table of the server at the end.
func (c Client) setTOML(before []byte, s Server) ([]byte, error) {
	var has map[string]any
	if err := toml.Unmarshal(before, &has); err != nil {
		return nil, err
	}
	table := c.table(s)
	if servers, ok := has[c.members[0]].(map[string]any); ok && servers[s.Name] != nil {
		var wanted map[string]map[string]any
		if err := toml.Unmarshal([]byte(table), &wanted); err != nil {
			return nil, err
		}
		is, _ := json.Marshal(servers[s.Name])
		if want, _ := json.Marshal(wanted[c.members[0]][s.Name]); bytes.Equal(is, want) {
			return before, nil
		}
		return nil, ErrTaken
	}
	after := before
	if len(after) > 0 {
		after = append(bytes.TrimRight(after, "\n"), "\n\n"...)
	}
	after = append(after, table...)
	return after, toml.Unmarshal(after, &has)
}

// table is the table of the server in TOML.
func (c Client) table(s Server) string {
	var text strings.Builder
	fmt.Fprintf(&text, "[%s.%s]\n", c.members[0], s.Name)
	encoded, err := toml.Marshal(c.entry(s))
	if err != nil {
		panic(err) // of strings
	}
	text.Write(encoded)
	return text.String()
}

// setJSON puts the entry of the server in, in place of one of its name.
func (c Client) setJSON(before []byte, s Server) ([]byte, error) {
	if len(bytes.TrimSpace(before)) == 0 {
		before = []byte("{}\n")
	}
	file, err := hujson.Parse(before)
	if err != nil {
		return nil, err
	}
	at, indent := &file, ""
	for _, name := range append(c.members, s.Name) {
		object, ok := at.Value.(*hujson.Object)
		if !ok {
			return nil, fmt.Errorf("there is no object where %q should be", name)
		}
		at, indent = findMember(object, name, indent)
	}
	entry, err := json.MarshalIndent(c.entry(s), indent, "  ")
	if err != nil {
		return nil, err
	}
	value, err := hujson.Parse(entry)
	if err != nil {
		return nil, err
	}
	was, _ := hujson.Standardize(hujson.Value{Value: at.Value}.Pack())
	if now, _ := hujson.Standardize(entry); equalJSON(was, now) {
		return before, nil
	}
	at.Value = value.Value
	return file.Pack(), nil
}

// findMember returns the value of a member, and its indentation. A member that is missing is added, as an empty object.
func findMember(object *hujson.Object, name, indent string) (value *hujson.Value, inner string) {
	inner = indent + "  "
	for i := range object.Members {
		m := &object.Members[i]
		if before := string(m.Name.BeforeExtra); strings.Contains(before, "\n") {
			inner = before[strings.LastIndex(before, "\n")+1:]
		}
		if literal, ok := m.Name.Value.(hujson.Literal); ok && literal.String() == name {
			return &m.Value, inner
		}
	}
	added := hujson.ObjectMember{
		// What follows the last member, such as a comment, stays with it.
		Name:  hujson.Value{BeforeExtra: append(bytes.TrimRight(object.AfterExtra, " \t\r\n"), "\n"+inner...), Value: hujson.String(name)},
		Value: hujson.Value{BeforeExtra: []byte(" "), Value: &hujson.Object{}},
	}
	if n := len(object.Members); n > 0 && object.Members[n-1].Value.AfterExtra != nil {
		added.Value.AfterExtra = []byte{} // a comma follows
	}
	object.AfterExtra = []byte("\n" + indent)
	object.Members = append(object.Members, added)
	return &object.Members[len(object.Members)-1].Value, inner
}

func equalJSON(a, b []byte) bool {
	var x, y any
	if json.Unmarshal(a, &x) != nil || json.Unmarshal(b, &y) != nil {
		return false
	}
	one, _ := json.Marshal(x)
	other, _ := json.Marshal(y)
	return bytes.Equal(one, other)
}
