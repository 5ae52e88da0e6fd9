package config

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// maxSecret bounds a file of ${file:PATH}, in bytes.
const maxSecret = 64 << 10

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
	if p, ok := errors.AsType[*fs.PathError](err); ok {
		return p.Err
	}
	return err
}
