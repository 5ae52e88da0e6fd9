package check

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/loader"
	"github.com/compose-spec/compose-go/v2/types"
)

// listens are the ports at which the services listen, each with the file that says so; "" where it
// is what their images do by themselves.
var listens = map[string]map[string]string{
	"redis":      {"6379": ""},
	"slowserver": {"3001": "slowserver.Dockerfile"},
	"taskgate-a": {"8080": "taskgate.yaml", "9090": "taskgate.yaml"},
	"taskgate-b": {"8080": "taskgate.yaml", "9090": "taskgate.yaml"},
	"collector":  {"4318": "collector.yaml"},
	"tempo":      {"4317": "tempo.yaml", "3200": "tempo.yaml"},
	"loki":       {"3100": ""},
	"prometheus": {"9090": ""},
	"grafana":    {"3000": ""},
}

// TestComposeFile: the compose file is one by its specification, what it builds from and mounts is
// there, and each address in the configurations is one where a service listens.
func TestComposeFile(t *testing.T) {
	const dir = ".."
	text, err := os.ReadFile(filepath.Join(dir, "compose.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	root, err := filepath.Abs(dir)
	if err != nil {
		t.Fatal(err)
	}
	project, err := loader.LoadWithContext(t.Context(), types.ConfigDetails{
		WorkingDir: root, ConfigFiles: []types.ConfigFile{{Filename: filepath.Join(root, "compose.yaml"), Content: text}},
	})
	if err != nil {
		t.Fatal(err)
	}
	for name, s := range project.Services {
		if listens[name] == nil {
			t.Errorf("%s is new", name)
		}
		if s.Build != nil {
			if _, err := os.Stat(filepath.Join(s.Build.Context, s.Build.Dockerfile)); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		} else if _, tag, _ := strings.Cut(s.Image, ":"); tag == "" || tag == "latest" {
			t.Errorf("%s is of any version: %s", name, s.Image)
		}
		for _, v := range s.Volumes {
			if _, err := os.Stat(v.Source); err != nil || !v.ReadOnly {
				t.Errorf("%s mounts %s: read only %t, %v", name, v.Source, v.ReadOnly, err)
			}
		}
		for _, p := range s.Ports {
			if _, ok := listens[name][strconv.Itoa(int(p.Target))]; !ok || p.HostIP != "127.0.0.1" {
				t.Errorf("%s shows %s:%s for %d", name, p.HostIP, p.Published, p.Target)
			}
		}
	}
	if len(project.Services) != len(listens) {
		t.Errorf("%d services", len(project.Services))
	}
	checkAddresses(t, dir)
}

// checkAddresses looks at the addresses in all configurations.
func checkAddresses(t *testing.T, dir string) {
	t.Helper()
	address := regexp.MustCompile(`\b([a-z-]+):(\d{4})\b`)
	found := map[string]bool{}
	for _, file := range []string{
		"compose.yaml", "collector.yaml", "tempo.yaml", "taskgate.yaml", "prometheus/prometheus.yaml",
		"grafana/provisioning/datasources/datasources.yaml",
	} {
		text, err := os.ReadFile(filepath.Join(dir, file))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range address.FindAllStringSubmatch(string(text), -1) {
			if _, ok := listens[m[1]][m[2]]; !ok {
				t.Errorf("%s: nothing listens at %s", file, m[0])
			}
			found[m[0]] = true
		}
	}
	for _, want := range []string{"redis:6379", "slowserver:3001", "taskgate-a:9090", "taskgate-b:9090", "collector:4318", "tempo:4317", "tempo:3200", "loki:3100", "prometheus:9090"} {
		if !found[want] {
			t.Errorf("nobody asks %s", want)
		}
	}
	for name, ports := range listens {
		for port, file := range ports {
			if file == "" {
				continue
			}
			text, err := os.ReadFile(filepath.Join(dir, file))
			if err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(string(text), port) {
				t.Errorf("%s does not have %s listen at %s", file, name, port)
			}
		}
	}
}
