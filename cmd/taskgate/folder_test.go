package main

import (
	"flag"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"taskgate/gateway/config"
)

// served is the server of a command line, with the folder of its store chosen.
func served(t *testing.T, log io.Writer, args ...string) *server {
	t.Helper()
	flags := flag.NewFlagSet("serve", flag.ContinueOnError)
	o := newServeOptions(flags)
	must(t, flags.Parse(args))
	c, err := o.loadConfig()
	must(t, err)
	s := newServer(c, log)
	s.chooseFolder(o.nameFolder(c))
	return s
}

// Where the folder of tasks is, by the environment.
func TestStateFolder(t *testing.T) {
	for name, c := range map[string]struct{ own, state, home, want string }{
		"of the service":  {own: "/var/lib/a:/var/lib/b", state: "/state", home: "/home/ada", want: "/var/lib/a/name"},
		"of the user":     {state: "/state", home: "/home/ada", want: "/state/taskgate/name"},
		"below the home":  {home: "/home/ada", want: "/home/ada/.local/state/taskgate/name"},
		"a relative path": {own: "a", state: "state", home: "/home/ada", want: "/home/ada/.local/state/taskgate/name"},
	} {
		t.Setenv("STATE_DIRECTORY", c.own)
		t.Setenv("XDG_STATE_HOME", c.state)
		t.Setenv("HOME", c.home)
		if got, err := stateFolder("name"); got != c.want || err != nil {
			t.Errorf("%s: %s, %v", name, got, err)
		}
	}
	t.Setenv("STATE_DIRECTORY", "")
	t.Setenv("XDG_STATE_HOME", "")
	for _, home := range []string{"", "home"} {
		t.Setenv("HOME", home)
		if _, err := stateFolder("name"); err == nil {
			t.Errorf("a folder below the home %q", home)
		}
	}
}

// The same command line has the same folder, and another server, address or file another one.
func TestFolderOfItsOwn(t *testing.T) {
	t.Setenv("STATE_DIRECTORY", t.TempDir())
	t.Chdir(t.TempDir())
	for _, name := range []string{"taskgate.yaml", "other.yaml"} {
		must(t, os.WriteFile(name, []byte("upstreams: [{name: a, url: 'http://127.0.0.1:1'}]\n"), 0o600))
	}
	here, err := filepath.Abs("taskgate.yaml")
	must(t, err)
	folder := func(args ...string) string {
		path, named := served(t, io.Discard, args...).config.StoreFolder()
		info, err := os.Stat(path)
		if !named || err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("%q: %q, %v, %v", args, path, info, err)
		}
		return path
	}
	all := map[string]int{}
	for i, same := range [][][]string{
		{{"--upstream", "http://127.0.0.1:1/mcp"}, {"--upstream", "http://127.0.0.1:1/mcp", "--listen", "127.0.0.1:8080", "--grace", "1s"}},
		{{"--upstream", "http://127.0.0.1:2/mcp"}},
		{{"--upstream", "http://127.0.0.1:2/mcp", "--listen", "127.0.0.1:8081"}},
		{{"--config", "taskgate.yaml"}, {"--config", here}, {"--config", here, "--listen", "127.0.0.1:8081"}},
		{{"--config", "other.yaml"}},
	} {
		for _, args := range same {
			path := folder(args...)
			if before, is := all[path]; is && before != i {
				t.Errorf("%q has the folder of another gateway", args)
			}
			all[path] = i
		}
	}
	if len(all) != 5 {
		t.Errorf("the folders are %v", all)
	}
}

// Where no folder can be made, tasks are in memory, and the log says so.
func TestNoFolder(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	must(t, os.WriteFile(file, nil, 0o600))
	t.Setenv("STATE_DIRECTORY", file)
	var log logged
	s := served(t, &log, "--upstream", "http://127.0.0.1:1/mcp")
	if s.config.Store != config.StoreEmbedded || strings.Count(log.String(), "\n") != 1 || !strings.Contains(log.String(), file) {
		t.Errorf("store %s:\n%s", s.config.Store, log.String())
	}
	s = served(t, &log, "--upstream", "http://127.0.0.1:1/mcp", "--store", "file:"+file+"/x")
	if path, _ := s.config.StoreFolder(); path != file+"/x" {
		t.Errorf("the folder that is named became %q", path)
	}
}
