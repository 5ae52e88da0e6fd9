package main

import (
	"flag"
	"os"
	"slices"
	"testing"
	"time"

	"taskgate/gateway/config"
)

// stdioConfigOf is the configuration of a command line.
func stdioConfigOf(t *testing.T, args ...string) *config.Config {
	t.Helper()
	flags := flag.NewFlagSet("stdio", flag.ContinueOnError)
	o := newStdioOptions(flags)
	must(t, flags.Parse(args))
	c, err := o.loadConfig(flags.Args())
	must(t, err)
	return c
}

// A server that the command line names has what it would have without the gateway: the
// environment, all the time that npx needs, and a life as long as its client's.
func TestCommandAsWithoutTheGateway(t *testing.T) {
	t.Setenv("DESKTOP_SECRET", "a=b")
	c := stdioConfigOf(t, "--grace", "2s", "--without-tasks", "handle", "--log-level", "warn", "--", "npx", "-y", "server", "--config", "x")
	u := c.Upstreams[0]
	if len(c.Upstreams) != 1 || u.Command != "npx" || len(u.Args) != 4 || u.Args[3] != "x" || u.Cwd != "" {
		t.Errorf("command %q %q in %q", u.Command, u.Args, u.Cwd)
	}
	if env := u.Environment(os.Environ()); !slices.Contains(env, "DESKTOP_SECRET=a=b") {
		t.Errorf("environment %v", env)
	}
	if u.StartTimeout != time.Minute || u.Defaults.Grace != 2*time.Second ||
		u.WithoutTasks != config.WithoutTasksHandle || c.Log.Level != config.LevelWarn || c.Store != config.StoreEmbedded {
		t.Errorf("%+v", u)
	}
	if u = stdioConfigOf(t, "--grace", "auto", "--upstream", "http://127.0.0.1:1/mcp").Upstreams[0]; u.URL == "" || u.Defaults.Grace != config.Auto || u.Command != "" || len(u.Env) != 0 {
		t.Errorf("%+v", u)
	}
}

// Processes for different servers have different names for them: by its name a server's tasks are
// taken over in a store that several processes share. The path is the same.
func TestNamesOfServers(t *testing.T) {
	names := map[string]bool{}
	for _, args := range [][]string{
		{"--", "npx", "a"}, {"--", "npx", "b"}, {"--", "npx", "a", "b"}, {"--", "npx", "a b"},
		{"--upstream", "http://127.0.0.1:1/mcp"}, {"--upstream", "http://127.0.0.1:2/mcp"},
	} {
		u := stdioConfigOf(t, args...).Upstreams[0]
		if again := stdioConfigOf(t, args...).Upstreams[0]; names[u.Name] || again.Name != u.Name || u.Path != "/mcp" {
			t.Errorf("%q: name %s at %s", args, u.Name, u.Path)
		}
		names[u.Name] = true
	}
}
