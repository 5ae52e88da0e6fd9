package mcp

// The protocol versions that the gateway knows (design.md 0.1).
const (
	Version20260728 = "2026-07-28"
	Version20260630 = "2026-06-30" // the working draft that SEP-2663 names
	Version20251125 = "2025-11-25"
	Version20250618 = "2025-06-18"
	Version20250326 = "2025-03-26"
	Version20241105 = "2024-11-05"
)

// Era is how a version opens a conversation.
type Era uint8

// The eras. A version that is not in the table has none.
const (
	NoEra  Era = iota
	Legacy     // initialize, sessions
	Modern     // metadata in each request, server/discover
)

// String is the era in words.
func (e Era) String() string {
	return [...]string{"none", "legacy", "modern"}[e]
}

// Version is one row of the table of versions. The eras are looked up and not
// computed from the date, since the draft 2026-06-30 is modern and a version
// that is not listed is not spoken (protocol.md 1.1).
type Version struct {
	Name string
	Era  Era
	// HeaderVersion: requests after initialize carry MCP-Protocol-Version (X7).
	HeaderVersion bool
	// Priming: an SSE stream may open with an event of empty data (X9).
	Priming bool
}

// Versions is the table of versions, newest first.
var Versions = [...]Version{
	{Name: Version20260728, Era: Modern, HeaderVersion: true},
	{Name: Version20260630, Era: Modern, HeaderVersion: true},
	{Name: Version20251125, Era: Legacy, HeaderVersion: true, Priming: true},
	{Name: Version20250618, Era: Legacy, HeaderVersion: true},
	{Name: Version20250326, Era: Legacy},
	{Name: Version20241105, Era: Legacy},
}

// LookupVersion returns the row of a version, the zero Version if it is not
// known.
func LookupVersion(name string) Version {
	for _, v := range Versions {
		if v.Name == name {
			return v
		}
	}
	return Version{}
}

// EraOf is the era of a version, NoEra if it is not known.
func EraOf(name string) Era { return LookupVersion(name).Era }

// NamesOf lists the versions of an era, newest first.
func NamesOf(e Era) []string {
	var names []string
	for _, v := range Versions {
		if v.Era == e {
			names = append(names, v.Name)
		}
	}
	return names
}
