package main

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"

	"taskgate/gateway/auth"
	"taskgate/gateway/config"
	"taskgate/gateway/operator"
	"taskgate/gateway/sealed"
	"taskgate/internal/durable"
	"taskgate/redisstore"
	"taskgate/shim"
)

// openStore opens the configured store.
func (s *server) openStore(ctx context.Context) (*redisstore.Store, error) {
	secure, err := clientTLS(s.config.StoreTLS)
	if err != nil {
		return nil, fmt.Errorf("tls: %w", err)
	}
	if s.windows != nil {
		return s.windows.take(ctx)
	}
	store, err := redisstore.Open(ctx, s.config.Store, redisstore.Options{
		TLS: secure, Dialer: s.dialStore, Folder: s.folder,
		Prefix: s.config.KeyPrefix, WaitReplicas: s.config.WaitReplicas, Logger: s.log, Metrics: s.tel.metrics,
		AwayAfter: s.config.StoreTimeout / 3, MemoryLimit: memoryLimit(),
	})
	folder, onDisk := s.config.StoreFolder()
	if err != nil || !onDisk || len(s.config.StateKeys) > 0 {
		return store, err
	}
	if err = useStateKey(s.config, folder); err != nil {
		return nil, errors.Join(err, store.Close())
	}
	return store, nil
}

// keptTasks lists what the store has of ended tasks at the start, each with the share of its owner.
func keptTasks(store *redisstore.Store) []shim.KeptTask {
	all := store.Kept()
	for i, one := range all {
		all[i].Share = auth.ShareOf(one.Share.Owner)
	}
	return all
}

// stateKeyFile is the file of a folder with the key for state_keys.
const stateKeyFile = "state-key"

// useStateKey has the key of a folder be that of state_keys.
func useStateKey(c *config.Config, folder string) error {
	key, err := keptKey(filepath.Join(folder, stateKeyFile))
	if err == nil {
		c.StateKeys = []config.StateKey{key}
	}
	return err
}

// markKeys returns the keys that mark the ids of tasks. They are derived from state_keys.
func markKeys(stateKeys []config.StateKey) (keys [][]byte, err error) {
	for _, k := range stateKeys {
		secret, err := k.Secret()
		if err != nil {
			return nil, fmt.Errorf("state_keys: %w", err)
		}
		h := hmac.New(sha256.New, secret)
		h.Write([]byte("task ids"))
		keys = append(keys, h.Sum(nil))
	}
	return keys, nil
}

// keptKey returns the key for state_keys that is kept beside the store, and makes it at the first
// start. With it, sealed states open after a restart.
func keptKey(path string) (config.StateKey, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		text = []byte(base64.StdEncoding.EncodeToString(sealed.NewSecret()) + "\n")
		err = durable.WriteFile(path, text)
	}
	if err != nil {
		return "", err
	}
	key := config.StateKey(strings.TrimSpace(string(text)))
	if _, err := key.Secret(); err != nil {
		return "", fmt.Errorf("%s: %w", path, err)
	}
	return key, nil
}

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
	if local := os.Getenv("LOCALAPPDATA"); runtime.GOOS == "windows" && filepath.IsAbs(local) {
		return filepath.Join(local, "taskgate", name), nil
	}
	home, err := os.UserHomeDir()
	if err == nil && !filepath.IsAbs(home) {
		err = errors.New("the home folder has no absolute path")
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

// describeStore asks for how the store is.
func describeStore(ctx context.Context, c *config.Config, store redisstore.Overview) operator.Store {
	folder, onDisk := c.StoreFolder()
	if !onDisk {
		folder = ""
	}
	out := operator.Store{Kind: "redis", Folder: folder, WaitReplicas: c.WaitReplicas}
	switch {
	case onDisk:
		out.Kind = "file"
	case c.OwnsStore():
		out.Kind = "memory"
	}
	is, err := store.Condition(ctx, folder)
	if err != nil {
		out.Error = err.Error()
	}
	out.Address, out.LatencyMs, out.Masters, out.Replicas = strings.Join(is.Addresses, ", "), is.Latency.Seconds()*1000, is.Masters, is.Replicas
	out.UsedBytes, out.MaxBytes, out.FolderBytes = is.UsedMemory, is.MaxMemory, is.FolderBytes
	return out
}
