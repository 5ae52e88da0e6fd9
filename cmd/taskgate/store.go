package main

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"taskgate/gateway/auth"
	"taskgate/gateway/config"
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
	store, err := redisstore.Open(ctx, s.config.Store, redisstore.Options{
		TLS: secure, Dialer: s.dialStore, Folder: s.folder,
		Prefix: s.config.KeyPrefix, WaitReplicas: s.config.WaitReplicas, Logger: s.log, Metrics: s.tel.metrics,
		AwayAfter: s.config.StoreTimeout / 3,
	})
	folder, onDisk := s.config.StoreFolder()
	if err != nil || !onDisk || len(s.config.StateKeys) > 0 {
		return store, err
	}
	key, err := keptKey(filepath.Join(folder, "state-key"))
	if err != nil {
		return nil, errors.Join(err, store.Close())
	}
	s.config.StateKeys = []config.StateKey{key}
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
