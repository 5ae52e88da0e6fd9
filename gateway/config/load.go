package config

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"

	"go.yaml.in/yaml/v4"
)

// Load reads the configuration in a file, with variables from the process's environment. For a file
// with mistakes the error joins an [*Error] for each of them; for an unreadable file, it is the error
// of the file system.
func Load(path string) (*Config, error) {
	return load(path, everyMistake)
}

// LoadUnheard is [Load] for a process that listens nowhere: a server may be at the address of listen.
func LoadUnheard(path string) (*Config, error) {
	return load(path, func(e *Error) bool { return e.Message != isItself })
}

// LoadAdmin reads the admin address alone. Other keys may have mistakes, such as variables and files that only the
// gateway can read.
func LoadAdmin(path string) (string, error) {
	c, err := load(path, func(e *Error) bool { return e.Path == "admin" })
	if err != nil {
		return "", err
	}
	return c.Admin, nil
}

// load is Load of which only some mistakes of keys count.
func load(path string, counts func(*Error) bool) (*Config, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("reading the configuration: %w", err)
	}
	return parse(path, data, os.LookupEnv, counts)
}

func everyMistake(*Error) bool { return true }

// Parse is [Load] for data that is already read. Messages use the filename, and relative paths
// start at its folder; getenv looks variables up like [os.LookupEnv]. An error joins an [*Error]
// for each mistake.
func Parse(filename string, data []byte, getenv func(string) (string, bool)) (*Config, error) {
	return parse(filename, data, getenv, everyMistake)
}

// parse is Parse of which only some mistakes of keys count; a document without keys is always one.
func parse(filename string, data []byte, getenv func(string) (string, bool), counts func(*Error) bool) (*Config, error) {
	s := newSource(filename, data)
	root := s.parseDocument(data)
	c := s.readDocument(root, getenv)
	if c != nil {
		s.list = slices.DeleteFunc(s.list, func(e *Error) bool { return !counts(e) })
	}
	if len(s.list) == 0 {
		return c, nil
	}
	s.addExcerpts(root)
	return nil, asError(s.list)
}

// readDocument is readConfig for a document that may lack keys: then it adds that mistake, unless there is
// another one, and returns nil.
func (s *source) readDocument(root *yaml.Node, env lookup) *Config {
	switch {
	case root != nil && root.Kind == yaml.MappingNode:
		return s.readConfig(root, env)
	case root != nil && !isNull(root):
		s.addAt(root, "", "expected keys such as upstreams, found "+describeNode(root))
	case len(s.list) == 0:
		s.addMistake(1, 1, "", "the file is empty")
	}
	return nil
}

// readConfig turns the tree of a file into a configuration and adds its mistakes to those of the
// source.
func (s *source) readConfig(root *yaml.Node, env lookup) *Config {
	c := Default()
	d := &decoder{source: s, env: env}
	d.decodeValue(root, "", reflect.ValueOf(c).Elem(), nil)
	c.fillPaths()
	c.resolveFiles(filepath.Dir(s.name))
	s.checkAuth("auth", c.Auth)
	s.checkAuth("admin_auth", c.AdminAuth)
	for _, p := range c.problems() {
		s.addProblem(p)
	}
	return c
}

// fillPaths gives upstreams without a path the default one. It follows from the name, so it cannot
// be seeded.
func (c *Config) fillPaths() {
	for _, u := range c.Upstreams {
		if u.Path == "" {
			u.Path = defaultPath(u.Name)
		}
	}
}
