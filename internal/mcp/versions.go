package mcp

// The protocol versions that the gateway knows (design.md 0.1).
const (
	Version20260728 = "2026-07-28"
	Version20251125 = "2025-11-25"
	Version20250618 = "2025-06-18"
	Version20250326 = "2025-03-26"
	Version20241105 = "2024-11-05"
	Version20241007 = "2024-10-07" // servers with SDKs from before the first release answer with it
)

// Era is how a version opens a conversation.
type Era uint8

// The eras. A version outside of the table has NoEra.
const (
	NoEra  Era = iota
	Legacy     // initialize, sessions
	Modern     // metadata in each request, server/discover
)

// String returns the era in words.
func (e Era) String() string {
	return [...]string{"none", "legacy", "modern"}[e]
}

// Version is one row of the table of versions. The gateway speaks only listed versions (protocol.md 1.1).
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
	{Name: Version20251125, Era: Legacy, HeaderVersion: true, Priming: true},
	{Name: Version20250618, Era: Legacy, HeaderVersion: true},
	{Name: Version20250326, Era: Legacy},
	{Name: Version20241105, Era: Legacy},
	{Name: Version20241007, Era: Legacy},
}

// LookupVersion returns the row of a version; the zero Version if it is unknown.
func LookupVersion(name string) Version {
	for _, v := range Versions {
		if v.Name == name {
			return v
		}
	}
	return Version{}
}

// EraOf returns the era of a version; NoEra if it is unknown.
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
