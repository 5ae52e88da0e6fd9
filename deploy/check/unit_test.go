package check

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"taskgate/gateway/config"
)

// readUnit reads the settings of a unit.
func readUnit(t *testing.T, path string) map[string]string {
	t.Helper()
	unit, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	settings := map[string]string{}
	for line := range strings.Lines(string(unit)) {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok && !strings.HasPrefix(line, "#") {
			settings[key] = value
		}
	}
	return settings
}

// TestUnitRunsTheExamples: the service has the variables that the examples hand to the programs that they
// start. By itself, systemd gives a dynamic user no HOME.
func TestUnitRunsTheExamples(t *testing.T) {
	t.Setenv("HOME", "") // is restored at the end
	if err := os.Unsetenv("HOME"); err != nil {
		t.Fatal(err)
	}
	t.Setenv("REMOTE_TOKEN", "secret") // of /etc/taskgate/environment
	if name, value, ok := strings.Cut(readUnit(t, "../taskgate.service")["Environment"], "="); ok {
		t.Setenv(name, value)
	}
	examples, err := filepath.Glob("../../examples/*.yaml")
	if err != nil || len(examples) == 0 {
		t.Fatalf("the examples are %q, %v", examples, err)
	}
	for _, file := range examples {
		if _, err := config.Load(file); err != nil {
			t.Error(err)
		}
	}
}

// TestUnitMayAudit: the service can write the audit log where config.example.yaml has it. All of the file system
// but the folders that the unit names is read-only for it.
func TestUnitMayAudit(t *testing.T) {
	example, err := os.ReadFile("../../config.example.yaml")
	if err != nil {
		t.Fatal(err)
	}
	folder := "/var/log/" + readUnit(t, "../taskgate.service")["LogsDirectory"] + "/"
	if !strings.Contains(string(example), "\n#audit: "+folder) {
		t.Errorf("the service may write logs in %s, and the example of audit is elsewhere", folder)
	}
}

// TestUnitStopsTheGatewayAlone: the servers over stdio work on while the gateway drains. By itself, systemd sends
// SIGTERM to all processes of a service at once.
func TestUnitStopsTheGatewayAlone(t *testing.T) {
	if mode := readUnit(t, "../taskgate.service")["KillMode"]; mode != "mixed" {
		t.Errorf("KillMode=%s", mode)
	}
}

// TestUnitOutlivesItsServers: a server over stdio that the kernel ends for want of memory fails its own calls only.
// By itself, systemd stops the whole service.
func TestUnitOutlivesItsServers(t *testing.T) {
	if policy := readUnit(t, "../taskgate.service")["OOMPolicy"]; policy != "continue" {
		t.Errorf("OOMPolicy=%s", policy)
	}
}
