package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"taskgate/gateway/config"
	"taskgate/internal/durable"
)

// chooseFolder names the folder of a store whose configuration leaves it open. If it fails to make the
// folder, the store is in memory.
func (s *server) chooseFolder(name string) {
	if s.config.Store != config.StoreFile {
		return
	}
	path, err := stateFolder(name)
	if err == nil {
		err = durable.MakeFolder(path)
	}
	if err == nil {
		s.config.WithStoreFolder(path)
		return
	}
	s.config.Store = config.StoreEmbedded
	s.log.Warn("no folder for tasks can be made: name one with store: file:FOLDER", "err", err)
}

// stateFolder is the default folder of the store of a gateway.
func stateFolder(name string) (string, error) {
	// systemd has made the first folder for this service alone.
	if own, _, _ := strings.Cut(os.Getenv("STATE_DIRECTORY"), ":"); filepath.IsAbs(own) {
		return filepath.Join(own, name), nil
	}
	if state := os.Getenv("XDG_STATE_HOME"); filepath.IsAbs(state) {
		return filepath.Join(state, "taskgate", name), nil
	}
	home, err := os.UserHomeDir()
	if err == nil && !filepath.IsAbs(home) {
		err = errors.New("the home directory has no absolute path")
	}
	return filepath.Join(home, ".local", "state", "taskgate", name), err
}

// nameFolder names the folder of a gateway; each gateway has its own.
func (o *serveOptions) nameFolder(c *config.Config) string {
	if o.file != "" {
		return folderOfFile(o.file)
	}
	return folderName(o.upstream, o.upstream, c.Listen)
}

// folderOfFile names the folder of a gateway by the path of its configuration.
func folderOfFile(file string) string {
	path, err := filepath.Abs(file)
	if err != nil { // the process has no working directory
		path = file
	}
	return folderName(strings.TrimSuffix(filepath.Base(path), filepath.Ext(path)), path)
}

// scheme and unprintable match the parts of a title that a folder's name leaves out.
var (
	scheme      = regexp.MustCompile(`^\w+://`)
	unprintable = regexp.MustCompile(`[^A-Za-z0-9.]+`)
)

// folderName is a title that people know, and a hash of the words that tell gateways apart.
func folderName(title string, words ...string) string {
	title = strings.Trim(unprintable.ReplaceAllString(scheme.ReplaceAllString(title, ""), "-"), "-.")
	return fmt.Sprintf("%.40s-%s", title, digest(words)[:8])
}

// storeKind says where tasks are, for people.
func storeKind(c *config.Config) string {
	path, onDisk := c.StoreFolder()
	switch {
	case onDisk:
		return "file " + path
	case c.OwnsStore():
		return "memory"
	}
	return "redis"
}
