package mcp

import (
	"net/http"
	"slices"
	"testing"
)

// Headers are looked up in http.Header without being normalised, so their
// spelling has to be the canonical one.
func TestHeadersAreCanonical(t *testing.T) {
	for _, h := range []string{HeaderProtocolVersion, HeaderSession, HeaderMethod, HeaderName, HeaderParamPrefix, HeaderLastEventID} {
		if got := http.CanonicalHeaderKey(h); got != h {
			t.Errorf("header %q, canonical %q", h, got)
		}
	}
}

func TestVersions(t *testing.T) {
	for name, want := range map[string]Era{
		"2026-07-28": Modern, "2026-06-30": NoEra, "2025-11-25": Legacy, "2025-06-18": Legacy,
		"2025-03-26": Legacy, "2024-11-05": Legacy, "2024-10-07": Legacy, "2027-01-01": NoEra, "": NoEra,
	} {
		if got := EraOf(name); got != want {
			t.Errorf("EraOf(%q) = %v, want %v", name, got, want)
		}
	}
	if got, want := NamesOf(Modern), []string{"2026-07-28"}; !slices.Equal(got, want) {
		t.Errorf("NamesOf(Modern) = %v, want %v", got, want)
	}
}

func TestReservedCodes(t *testing.T) {
	for code, want := range map[int64]bool{-32019: false, -32020: true, -32042: true, -32099: true, -32100: false, -32603: false} {
		if Reserved(code) != want {
			t.Errorf("Reserved(%d) = %v", code, !want)
		}
	}
}

func TestNamesAndLevels(t *testing.T) {
	if NameParam(MethodResourcesRead) != "uri" || NameParam(MethodToolsList) != "" {
		t.Error("NameParam")
	}
	for method, want := range map[string]bool{
		"acme/do": true, "nonsense": true, "notifications/acme": true, "": false, MethodPing: false, "tasks/other": false,
		MethodElicit: false, NotifyProgress: false, NotifyTask: false, NotifyTaskPartial: false,
	} {
		if Foreign(method) != want {
			t.Errorf("Foreign(%q) is not %t", method, want)
		}
	}
	if !IsRequest(MethodTasksList) || IsRequest(NotifyProgress) || IsRequest("") {
		t.Error("IsRequest")
	}
	if LogSeverity("debug") != 0 || LogSeverity("emergency") != 7 || LogSeverity("loud") != -1 {
		t.Error("LogSeverity")
	}
}
