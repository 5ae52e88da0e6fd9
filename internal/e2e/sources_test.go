package e2e

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// The programs under test are built by a command that the go tool knows nothing
// of, so it would take an old result for a new one. It does notice which files a
// test looks at: this one looks at all that the programs are made of.
func TestLooksAtTheSources(t *testing.T) {
	for _, dir := range []string{"cmd", "gateway", "shim", "redisstore", "internal", "examples"} {
		err := filepath.WalkDir(filepath.Join("..", "..", dir), func(name string, _ fs.DirEntry, err error) error {
			if err == nil {
				_, err = os.Stat(name)
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	}
	for _, file := range []string{"go.mod", "go.sum"} {
		if _, err := os.Stat(filepath.Join("..", "..", file)); err != nil {
			t.Error(err)
		}
	}
}
