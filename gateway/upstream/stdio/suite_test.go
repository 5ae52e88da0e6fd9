package stdio

import (
	"os"
	"path/filepath"
	"testing"

	"taskgate/gateway/upstream"
	"taskgate/gateway/upstream/transporttest"
	"taskgate/shim"
	"taskgate/shim/shimtest"
)

// peer dials a server of the Go SDK that runs as a child process.
func peer(era upstream.EraChoice, suiteEra string, shared bool, adjust func(*shimtest.Peer)) shimtest.Dial {
	return func(t *testing.T) *shimtest.Peer {
		dir := t.TempDir()
		count := func(what string) func(string) int {
			return func(key string) int {
				b, _ := os.ReadFile(filepath.Join(dir, what+"-"+key))
				return len(b)
			}
		}
		w := start(t, "sdk", Config{OneUser: true, Env: []string{"SUITE_DIR=" + dir, "SUITE_ERA=" + suiteEra}}, upstream.Config{Era: era, Shared: shared})
		peer := &shimtest.Peer{Upstream: w.up, Runs: count("ran"), Cancelled: count("gone")}
		peer.Change = func() {
			r := shimtest.Tool("change", "change")
			r.Session = shim.Session{Key: "somebody"}
			check(t, errorOf(w.up.Call(t.Context(), r, &shimtest.Sink{})))
		}
		adjust(peer)
		return peer
	}
}

// TestSuiteOverStdio: a server of the Go SDK over stdio keeps the contract of the upstream
// client, in both eras, whoever shares its process.
func TestSuiteOverStdio(t *testing.T) {
	asks := func(p *shimtest.Peer) { p.Asks, p.Detaches = true, true }
	aside := func(p *shimtest.Peer) { p.AsksAside, p.Detaches = true, true }
	relays := func(p *shimtest.Peer) { p.Relays = true }
	for _, c := range []struct {
		name string
		dial shimtest.Dial
	}{
		{"Legacy", peer(upstream.EraLegacy, "legacy", true, asks)},
		{"LegacyAside", peer(upstream.EraLegacy, "legacy", true, aside)},
		{"Modern", peer(upstream.EraAuto, "modern", false, relays)},
	} {
		t.Run(c.name, func(t *testing.T) { shimtest.Upstream(t, c.dial) })
	}
}

// TestTransportSuite: processes keep the contract of all transports.
func TestTransportSuite(t *testing.T) {
	transporttest.Suite(t, func(t *testing.T) *transporttest.Peer {
		w := start(t, "suite", Config{}, upstream.Config{})
		return &transporttest.Peer{Transport: w.tr}
	})
}
