package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"taskgate/internal/compare/peers"
)

// install installs the chosen peers by their usual installers, each into a place of its own.
func install(ctx context.Context, o *options) error {
	if err := build(ctx, o); err != nil {
		return err
	}
	for _, p := range o.chosen() {
		if _, err := os.Stat(p.Installation(o.installed)); p.Installation(o.installed) == "" || err == nil {
			continue
		}
		log.Printf("installing %s %s", p.Name, p.Version)
		var err error
		if p.NPM != "" {
			err = command(ctx, o.root, "npm", "install", "--no-audit", "--no-fund", "--prefix", p.Installation(o.installed), p.NPM)
		} else {
			err = buildPeer(ctx, o, p)
		}
		if err != nil {
			return fmt.Errorf("install %s: %w", p.Name, err)
		}
	}
	return nil
}

// buildPeer does what go install does, in a module that requires the pinned version: go install wants to list all
// versions first, which a module proxy may not have.
func buildPeer(ctx context.Context, o *options, p peers.Peer) error {
	dir, err := os.MkdirTemp("", "compare-build")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	module, version, _ := strings.Cut(p.Module, " ")
	text := fmt.Sprintf("module build\n\ngo 1.26.0\n\nrequire %s %s\n", module, version)
	if err := os.WriteFile(filepath.Join(dir, "go.mod"), []byte(text), 0o600); err != nil {
		return err
	}
	return command(ctx, dir, "go", "build", "-mod=mod", "-trimpath", "-o", p.Installation(o.installed), p.Go)
}

// build builds what this repository has of the comparison: taskgate, the bare proxy, the server.
func build(ctx context.Context, o *options) error {
	if o.built {
		return nil
	}
	bin := filepath.Join(o.installed, "bin") + string(filepath.Separator)
	if err := os.MkdirAll(bin, 0o700); err != nil {
		return err
	}
	if err := command(ctx, o.root, "go", "build", "-trimpath", "-o", bin, "./cmd/taskgate", "./internal/e2e/conformserver"); err != nil {
		return err
	}
	return command(ctx, filepath.Join(o.root, "internal", "compare"), "go", "build", "-trimpath", "-o", bin, "./bareproxy", "./trialserver")
}

// command runs a program to its end.
func command(ctx context.Context, dir, name string, args ...string) error {
	c := exec.CommandContext(ctx, name, args...)
	c.Dir = dir
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", c, err, out)
	}
	return nil
}
