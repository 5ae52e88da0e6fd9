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

// maxSecret bounds what is read from a *_file, in bytes.
const maxSecret = 64 << 10

// readSecrets replaces the *_file keys by what is in the files and brings
// header names into canonical form, so that users of a Config look at one
// place only. What Validate later says about such a value points at the
// *_file key.
func (s *source) readSecrets(c *Config, dir string) {
	if c.StoreFile != "" {
		s.readSecret("store", "store_file", dir, c.StoreFile, &c.Store)
	}
	for i := range c.StateKeys {
		if k, at := &c.StateKeys[i], "state_keys["+itoa(i)+"]"; k.KeyFile != "" {
			s.readSecret(at+".key", at+".key_file", dir, k.KeyFile, &k.Key)
		}
	}
	s.readAuthSecrets("auth", dir, &c.Auth)
	for i, u := range c.Upstreams {
		if u.Auth != nil {
			s.readAuthSecrets("upstreams["+itoa(i)+"].auth", dir, u.Auth)
		}
		at := "upstreams[" + itoa(i) + "].headers"
		u.Headers = s.canonicalHeaders(at, u.Headers)
		files := s.canonicalHeaders(at+"_file", u.HeadersFile)
		for _, name := range slices.Sorted(maps.Keys(files)) {
			value := ""
			s.readSecret(join(at, name), join(at+"_file", name), dir, files[name], &value)
			u.Headers[name] = value
		}
	}
}

// readAuthSecrets does so for an auth.
func (s *source) readAuthSecrets(at, dir string, a *Auth) {
	if a.Passthrough == nil || a.Passthrough.Introspection == nil {
		return
	}
	if i, at := a.Passthrough.Introspection, at+".passthrough.introspection"; i.ClientSecretFile != "" {
		s.readSecret(at+".client_secret", at+".client_secret_file", dir, i.ClientSecretFile, &i.ClientSecret)
	}
}

// readSecret sets the value of a key from the file that its other form names.
func (s *source) readSecret(key, fileKey, dir, file string, value *string) {
	if p, ok := s.at[key]; ok {
		s.addProblem(problem{
			paths:   []string{fileKey},
			message: fmt.Sprintf("%s is already given on line %d; keep one of the two", key, p.value.Line),
			onKey:   true,
		})
		return
	}
	s.at[key] = s.at[fileKey]
	text, err := readSecretFile(dir, file)
	if err != nil {
		s.addProblem(problem{paths: []string{fileKey}, message: err.Error()})
		s.bad[key] = true
		return
	}
	*value = text
}

// canonicalHeaders returns a copy with canonical names, never nil, and reports
// names that are the same but for their case.
func (s *source) canonicalHeaders(at string, headers map[string]string) map[string]string {
	out := make(map[string]string, len(headers))
	for _, name := range s.inOrder(at, headers) {
		key := canonical(name)
		if _, twice := out[key]; twice {
			s.addProblem(problem{
				paths:   []string{join(at, name)},
				message: fmt.Sprintf("the header %s is given twice", key),
				onKey:   true,
			})
		}
		out[key] = headers[name]
		s.at[join(at, key)] = s.at[join(at, name)]
		s.bad[join(at, key)] = s.bad[join(at, name)]
	}
	return out
}

// inOrder returns the names of headers in the order of the file.
func (s *source) inOrder(at string, headers map[string]string) []string {
	return slices.SortedFunc(maps.Keys(headers), func(a, b string) int {
		x, y := s.at[join(at, a)].key, s.at[join(at, b)].key
		return cmp.Or(cmp.Compare(x.Line, y.Line), cmp.Compare(x.Column, y.Column))
	})
}

func canonical(header string) string { return textproto.CanonicalMIMEHeaderKey(header) }

// readSecretFile reads a small regular file and drops the line breaks at its
// end, which editors and "echo" add.
func readSecretFile(dir, name string) (string, error) {
	if !filepath.IsAbs(name) {
		name = filepath.Join(dir, name)
	}
	info, err := os.Stat(name)
	if err != nil {
		return "", fmt.Errorf("cannot read the file: %w", cause(err))
	}
	if !info.Mode().IsRegular() {
		return "", errors.New("cannot read the file: not a regular file")
	}
	f, err := os.Open(name)
	if err != nil {
		return "", fmt.Errorf("cannot read the file: %w", cause(err))
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxSecret+1))
	text := strings.TrimRight(string(data), "\r\n")
	switch {
	case err != nil:
		return "", fmt.Errorf("cannot read the file: %w", cause(err))
	case len(data) > maxSecret:
		return "", errors.New("the file is too large to be a secret")
	case text == "":
		return "", errors.New("the file is empty")
	}
	return text, nil
}

// cause drops the path from an error of the file system: the line that is
// shown has it, unless it came from a variable and is nobody's business.
func cause(err error) error {
	var p *fs.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}
