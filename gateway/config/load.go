package config

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"

	"go.yaml.in/yaml/v4"
)

// Load reads the configuration in a file, with variables from the process's environment. For a file
// with mistakes the error joins an [*Error] for each of them; for an unreadable file, it is the error
// of the file system.
func Load(path string) (*Config, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("reading the configuration: %w", err)
	}
	return Parse(path, data, os.LookupEnv)
}

// Parse is [Load] for data that is already read. Messages use the filename, and relative paths
// start at its directory; getenv looks variables up like [os.LookupEnv]. An error joins an [*Error]
// for each mistake.
func Parse(filename string, data []byte, getenv func(string) (string, bool)) (*Config, error) {
	s := newSource(filename, data)
	root := s.parseDocument(data)
	switch {
	case root != nil && root.Kind == yaml.MappingNode:
		c := s.readConfig(root, getenv)
		if len(s.list) == 0 {
			return c, nil
		}
	case root != nil && !isNull(root):
		s.addAt(root, "", "expected keys such as upstreams, found "+describeNode(root))
	case len(s.list) == 0:
		s.addMistake(1, 1, "", "the file is empty")
	}
	s.addExcerpts(root)
	return nil, asError(s.list)
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
