package config

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/textproto"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// maxSecret bounds a file of ${file:PATH}, in bytes.
const maxSecret = 64 << 10

// nameHeaders brings header names into canonical form.
func (s *source) nameHeaders(c *Config) {
	for i, u := range c.Upstreams {
		u.Headers = s.canonicalHeaders("upstreams["+itoa(i)+"].headers", u.Headers)
	}
}

// canonicalHeaders returns a copy with canonical names, never nil, and reports names that differ in
// case only.
func (s *source) canonicalHeaders(at string, headers map[string]string) map[string]string {
	out := make(map[string]string, len(headers))
	for _, name := range s.inOrder(at, headers) {
		key := canonicalURL(name)
		if _, twice := out[key]; twice {
			s.addProblem(problem{
				paths:   []string{joinKey(at, name)},
				message: fmt.Sprintf("the header %s is given twice", key),
				onKey:   true,
			})
		}
		out[key] = headers[name]
		s.at[joinKey(at, key)] = s.at[joinKey(at, name)]
		s.bad[joinKey(at, key)] = s.bad[joinKey(at, name)]
	}
	return out
}

// inOrder returns the names of headers in the order of the file.
func (s *source) inOrder(at string, headers map[string]string) []string {
	return slices.SortedFunc(maps.Keys(headers), func(a, b string) int {
		x, y := s.at[joinKey(at, a)].key, s.at[joinKey(at, b)].key
		return cmp.Or(cmp.Compare(x.Line, y.Line), cmp.Compare(x.Column, y.Column))
	})
}

func canonicalURL(header string) string { return textproto.CanonicalMIMEHeaderKey(header) }

// readSecretFile reads a small regular file and drops the line breaks at its end, which editors and
// "echo" add.
func readSecretFile(dir, name string) (string, error) {
	if !filepath.IsAbs(name) {
		name = filepath.Join(dir, name)
	}
	info, err := os.Stat(name)
	if err != nil {
		return "", fmt.Errorf("cannot be read: %w", dropPath(err))
	}
	if !info.Mode().IsRegular() {
		return "", errors.New("cannot be read: not a regular file")
	}
	f, err := os.Open(name)
	if err != nil {
		return "", fmt.Errorf("cannot be read: %w", dropPath(err))
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxSecret+1))
	text := strings.TrimRight(string(data), "\r\n")
	switch {
	case err != nil:
		return "", fmt.Errorf("cannot be read: %w", dropPath(err))
	case len(data) > maxSecret:
		return "", errors.New("is too large to be a secret")
	case text == "":
		return "", errors.New("is empty")
	}
	return text, nil
}

// dropPath drops the path from an error of the file system: the shown line has it, unless it came
// from a variable and stays private.
func dropPath(err error) error {
	var p *fs.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}
